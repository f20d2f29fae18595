//! What guests are told to do: the rounds of a plan, by name. A new test in the guest gets
//! its round here (the crate's own words say what else it takes).

use oversub_vm::chosen::SourceLoad;
use oversub_vm::combination::{Combination, Model};
use oversub_vm::plan::{
    DoctorLoad, FaultLoad, HostileLoad, ProbeLoad, ProgramLoad, RestartLoad, Round, Steering, Work,
};

use crate::product::Length;
use crate::{judge, permissions, product};

/// The GPU's memory in the rounds that count faults, MiB.
const FAULTS_MIB: u64 = 16;
/// And where the daemon's metrics of such launches are read, MiB.
const METRICS_MIB: u64 = 32;
/// Bytes of a launch of `sweep`: one block, as the GPU has few of them.
const LAUNCH_BYTES: u64 = 2 << 20;
/// The programs' memory in the product's rounds, in parts of the GPU's.
const PRODUCT_RATIO: f64 = 1.5;
/// Kernels last so many times what they take of the guest's one processor, which also does
/// the work of the link: long enough that what they need next can come meanwhile, as on a
/// GPU whose link keeps up, and that a daemon comes back before a program ends. Time in
/// which all wait costs nothing.
const PRODUCT_SCALE: u32 = 40;
/// The GPU's memory where daemons are killed, MiB: enough for a policy to work.
const RESTARTS_MIB: u64 = 32;
/// How long a program runs whose daemons are killed; nothing is counted of it.
const RESTARTED: Length = Length {
    iterations: 10,
    settled_after: 10,
};

/// The GPU's memory where it is asked who may attach, MiB, and how long the program runs
/// meanwhile: each of three that steer it has to learn it, and it ends under the last.
const ATTACH_MIB: u64 = 16;
const ATTACHED: Length = Length {
    iterations: 6,
    settled_after: 6,
};
/// The GPU's memory where BPF cannot be used, MiB, and how long the program runs there.
const SOURCE_MIB: u64 = 32;
const SOURCED: Length = Length {
    iterations: 6,
    settled_after: 4,
};

fn round(name: &str, memory_mib: u64, work: Work) -> Round {
    Round {
        name: name.to_owned(),
        model: Model::Pascal,
        memory_mib,
        drop_copies: false,
        work,
    }
}

/// What is asked of the driver itself, in every combination.
pub fn of_driver(combination: Combination, driver: &str, hostile_seconds: u32) -> Vec<Round> {
    let mut rounds = faults();
    rounds.extend(probes(combination, driver));
    rounds.push(round("advice", FAULTS_MIB, Work::Advice));
    rounds.push(round("metrics", METRICS_MIB, Work::Metrics));
    rounds.push(doctor(combination, driver));
    rounds.push(attach());
    rounds.push(hostile(hostile_seconds));
    rounds
}

/// What is asked of the whole product, for two guests that run at the same time and take about
/// as long: what goes with the driver's rounds, and the rest. `all`: by the event queue too.
pub fn of_product(all: bool) -> (Vec<Round>, Vec<Round>) {
    let mut rounds = product();
    rounds.retain(|round| match &round.work {
        Work::Program(load) => all || load.steering != Steering::Queued,
        _ => true,
    });
    rounds.push(restarts());
    let with_driver = |round: &Round| match &round.work {
        Work::Program(load) => load.program == "train" || load.steering == Steering::Queued,
        _ => false,
    };
    rounds.into_iter().partition(with_driver)
}

/// The files of oversub that a round needs in the guest.
pub fn programs(round: &Round) -> &'static [&'static str] {
    match round.work {
        Work::Program(_) | Work::Restarts(_) => &[
            "liboversub.so",
            "liboversub_softgpu.so",
            "oversubd",
            "sweep",
            "train",
        ],
        Work::Attach(_) => &["liboversub_softgpu.so", "oversub", "oversubd", "sweep"],
        Work::Source(_) => &[
            "liboversub.so",
            "liboversub_softgpu.so",
            "oversub",
            "oversubd",
            "sweep",
        ],
        Work::Metrics => &["oversubd"],
        Work::Doctor(_) => &[
            "liboversub.so",
            "liboversub_softgpu.so",
            "oversub",
            "oversubd",
        ],
        Work::Faults(_) | Work::Probes(_) | Work::Hostile(_) | Work::Advice => &[],
    }
}

/// What every guest does: count faults on both models, and see that lost data is noticed.
fn faults() -> Vec<Round> {
    let sweep = |name, stride| {
        let load = FaultLoad {
            ratio: 1.5,
            sweeps: 1,
            stride,
        };
        round(name, FAULTS_MIB, Work::Faults(load))
    };
    let turing = Round {
        model: Model::Turing,
        ..sweep("counts, turing", 16384)
    };
    let control = Round {
        drop_copies: true,
        ..sweep(judge::CONTROL, 16384)
    };
    vec![sweep(judge::COUNTS, 4096), turing, control]
}

/// The product's probes: as they are, on a driver that is loaded anew under them, with the
/// layouts of other drivers, and where the module has BTF attached by it.
fn probes(combination: Combination, driver: &str) -> Vec<Round> {
    let probes = |name, load| round(name, FAULTS_MIB, Work::Probes(load));
    let fine = ProbeLoad {
        ratio: 1.5,
        sweeps: 2,
        stride: 4096,
        layout_of: None,
        pin_driver: false,
        reload: false,
    };
    let coarse = ProbeLoad {
        stride: 16384,
        ..fine.clone()
    };
    let layout_of = |version: &str| ProbeLoad {
        layout_of: Some(version.to_owned()),
        ..coarse.clone()
    };
    // Other faults' layout, which the self-test sees; and the right one with other
    // migrations', which only migrations show.
    let other_migrations = if driver.starts_with("535.") {
        "550.163.01"
    } else {
        "535.183.01"
    };
    let reload = ProbeLoad {
        reload: true,
        ..coarse.clone()
    };
    let mut rounds = vec![
        probes(judge::PROBES, fine),
        probes("probes, driver loaded anew", reload),
        probes("probes, layout of 580", layout_of("580.142")),
        probes("probes, other migrations", layout_of(other_migrations)),
    ];
    if combination.btf {
        let pinned = ProbeLoad {
            pin_driver: true,
            ..coarse
        };
        rounds.push(probes("probes by module BTF", pinned));
    }
    rounds
}

fn program(name: &str, memory_mib: u64, length: Length, steering: Steering) -> ProgramLoad {
    ProgramLoad {
        program: name.to_owned(),
        bytes: ((memory_mib << 20) as f64 * PRODUCT_RATIO) as u64,
        iterations: length.iterations,
        settled_after: length.settled_after,
        steering,
        arguments: match name {
            "sweep" => vec!["--chunk-bytes".to_owned(), LAUNCH_BYTES.to_string()],
            _ => Vec::new(),
        },
        compute_scale: PRODUCT_SCALE,
    }
}

/// Each figure's program alone and steered.
fn product() -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for figure in &judge::FIGURES {
        let runs = [
            (figure.baseline, product::ALONE),
            (figure.steering, figure.length),
        ];
        for (steering, length) in runs {
            let title = format!("{}, {steering:?}", figure.program).to_lowercase();
            let load = program(figure.program, figure.memory_mib, length, steering);
            let next = round(&title, figure.memory_mib, Work::Program(load));
            // Figures of one program share its run on the driver alone.
            if !rounds.iter().any(|known| known.name == next.name) {
                rounds.push(next);
            }
        }
    }
    rounds
}

/// Daemons killed and the driver loaded anew around running programs.
fn restarts() -> Round {
    let load = RestartLoad {
        program: program("sweep", RESTARTS_MIB, RESTARTED, Steering::Oversub),
        kills: 2,
    };
    round(
        "daemon killed, driver loaded anew",
        RESTARTS_MIB,
        Work::Restarts(load),
    )
}

/// `oversub doctor` on this driver and kernel.
fn doctor(combination: Combination, driver: &str) -> Round {
    let build = combination.build;
    let load = DoctorLoad {
        driver: driver.to_owned(),
        flavour: build.flavour.to_string(),
        kernel: build.kernel.to_string(),
        btf: combination.btf,
    };
    round("doctor", FAULTS_MIB, Work::Doctor(load))
}

/// Who may have which process steered.
fn attach() -> Round {
    // Nothing is timed: its kernels take no longer than they do.
    let program = ProgramLoad {
        compute_scale: 1,
        ..program("sweep", ATTACH_MIB, ATTACHED, Steering::Attached)
    };
    let load = permissions::load(program);
    round("attach permissions", ATTACH_MIB, Work::Attach(load))
}

/// Steering where BPF cannot be used. The last of a boot, as it locks the kernel down.
pub fn source() -> Round {
    let load = SourceLoad {
        alone: program("sweep", SOURCE_MIB, product::ALONE, Steering::Alone),
        steered: program("sweep", SOURCE_MIB, SOURCED, Steering::Oversub),
    };
    round("source without BPF", SOURCE_MIB, Work::Source(load))
}

/// Processes that misuse the driver under observation for so long.
fn hostile(seconds: u32) -> Round {
    let load = HostileLoad { seconds, seed: 1 };
    round("hostile processes", FAULTS_MIB, Work::Hostile(load))
}
