//! The shared recorded traces against what their capture counted. They are not part of the
//! repository: set OVERSUB_TRACES to their folder to run this.

use std::collections::HashSet;
use std::path::Path;

use oversub_sim::trace::{Launch, Program, Step, read};

/// Name; footprint, GiB; per steady iteration: launches, blocks, GB of block touches, ms.
const COUNTED: [(&str, f64, f64, f64, f64, f64); 19] = [
    ("bert_base_ft", 21.5, 3223., 10974., 214., 763.),
    ("bert_large_ft", 31.1, 6283., 15933., 302., 1285.),
    ("bert_large_varlen", 30.3, 2637., 9255., 183., 163.),
    ("bfs_social", 12.0, 19., 6074., 81., 54.),
    ("cg_csr", 15.0, 8., 7682., 24., 17.),
    ("cholesky_tiles", 8.6, 816., 4384., 147., 992.),
    ("dcgan", 22.2, 513., 11373., 228., 3577.),
    ("dlrm_sorted_b2k", 39.0, 268., 2049., 10., 4.),
    ("gemm_tiles", 27.0, 217., 13825., 184., 1530.),
    ("gpt2_large", 48.0, 7985., 24536., 509., 1509.),
    ("gpt2_medium_accum_eval", 28.4, 3383., 10772., 406., 339.),
    ("jacobi3d", 24.0, 6., 12289., 86., 55.),
    ("llama1b_full", 45.2, 2930., 23137., 380., 447.),
    ("llama7b_decode_paged", 44.6, 1098., 21674., 64., 30.),
    ("llama7b_lora_ckpt", 19.4, 6619., 9915., 1153., 1661.),
    ("mobilenet_v2", 31.1, 1401., 15871., 177., 481.),
    ("moe_mixtral_small_decode", 28.4, 1133., 4310., 12., 12.),
    ("resnet152", 35.6, 4150., 17795., 328., 1133.),
    ("vit_l16", 36.3, 1703., 18543., 432., 456.),
];

/// The same figures of a program, over iterations 2 to the last but one.
fn count(program: &Program) -> [f64; 5] {
    let iterations = program.iterations();
    let steady = &iterations[2..iterations.len() - 1];
    let ideal = steady
        .iter()
        .map(|launches| program.ideal(launches.clone()));
    let ideal = ideal.map(|time| time.0 as f64).sum::<f64>();
    let (mut launches, mut blocks, mut touches) = (0, 0, 0);
    for iteration in steady {
        let mut seen = HashSet::new();
        for launch in iteration.clone() {
            let touched: HashSet<_> = program
                .accesses(Launch(launch))
                .iter()
                .map(|access| access.block)
                .collect();
            touches += touched.len();
            seen.extend(touched);
        }
        launches += iteration.len();
        blocks += seen.len();
    }
    let mean = |sum: usize| sum as f64 / steady.len() as f64;
    [
        program.footprint_bytes() as f64 / (1u64 << 30) as f64,
        mean(launches),
        mean(blocks),
        mean(touches) * (2 << 20) as f64 / 1e9,
        ideal / steady.len() as f64 / 1e6,
    ]
}

/// Blocks populated at once at most, as the builder counts them when no header tells it.
fn populated(program: &Program) -> u64 {
    let mut touched = vec![false; program.blocks()];
    let (mut now, mut most) = (0u64, 0);
    for step in program.steps() {
        let accesses = match step {
            Step::Launch(launch) => program.accesses(*launch),
            Step::Host(span) => program.host_accesses(*span),
            Step::Free(region, _) => {
                for piece in program.pieces_of(*region) {
                    now -= u64::from(std::mem::take(&mut touched[piece.block.index()]));
                }
                continue;
            }
            _ => continue,
        };
        for access in accesses {
            now += u64::from(!std::mem::replace(&mut touched[access.block.index()], true));
        }
        most = most.max(now);
    }
    most << 21
}

#[test]
fn recorded_traces_hold_what_their_capture_counted() {
    let Some(folder) = std::env::var_os("OVERSUB_TRACES") else {
        eprintln!("skipped: OVERSUB_TRACES does not name the folder of the recorded traces");
        return;
    };
    for (name, footprint, launches, blocks, gigabytes, milliseconds) in COUNTED {
        let path = Path::new(&folder).join(format!("{name}.trace.jsonl.zst"));
        let program = read(&path).unwrap();
        let counted = [footprint, launches, blocks, gigabytes, milliseconds];
        let found = count(&program);
        eprintln!("{name}: {found:.1?}");
        let unit = [0.1, 1., 1., 1., 1.];
        for ((found, counted), unit) in found.iter().zip(counted).zip(unit) {
            assert!(
                (found - counted).abs() <= unit * 0.51,
                "{name}: {found} for {counted}"
            );
        }
        assert_eq!(populated(&program), program.footprint_bytes(), "{name}");
    }
}
