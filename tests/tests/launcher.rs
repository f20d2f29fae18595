//! A program under `oversub run` is the program: status, output, signals, environment.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oversub_tests::binary;
use oversub_tests::program::{Outcome, clean, finish, outcome, oversub, wait_for};
use oversub_tests::workload::{Workload, assert_right, driver_folder, soft_gpu, stats_file};

/// How a program ends by itself.
fn alone(line: &[&str]) -> Outcome {
    let mut command = Command::new(line[0]);
    clean(&mut command);
    outcome(command.args(&line[1..]))
}

/// And under oversub, with a daemon of its own.
fn under(line: &[&str]) -> Outcome {
    outcome(oversub(&["run", "--soft", "--quiet", "--"]).args(line))
}

#[test]
fn status_and_output_are_the_programs_own() {
    for line in [
        &["true"][..],
        &["false"],
        &["sh", "-c", "echo out; echo err >&2; exit 3"],
        &["sh", "-c", "kill -9 $$"],
        &["sh", "-c", "kill -SEGV $$"],
        &["cat", "/does/not/exist"],
        &["env", "--no-such-option"],
    ] {
        assert_eq!(under(line), alone(line), "{line:?}");
    }
}

#[test]
fn a_workload_with_bad_input_behaves_as_without_oversub() {
    let (_folder, stats) = stats_file();
    let driver = driver_folder();
    for arguments in [
        &["--bytes", "nonsense"][..],
        &["--bytes", "0"],
        &["--iterations", "-1"],
        &["--no-such-option"],
        // More than any address space: the allocation itself fails.
        &["--bytes", "9000000000000000", "--iterations", "1"],
    ] {
        let program = binary("sweep");
        let mut alone = Command::new(&program);
        clean(&mut alone);
        soft_gpu(&mut alone, &stats);
        let alone = outcome(alone.args(arguments).env("LD_LIBRARY_PATH", driver.path()));
        let mut under = oversub(&["run", "--soft", "--quiet", "--"]);
        soft_gpu(&mut under, &stats);
        let under = outcome(under.arg(&program).args(arguments));
        assert!(
            !alone.status.success(),
            "{arguments:?} is not bad input: {alone:?}"
        );
        assert_eq!(under, alone, "{arguments:?}");
    }
}

#[test]
fn a_program_that_cannot_be_started_gives_the_shells_status() {
    assert_eq!(under(&["/does/not/exist"]).status.code(), Some(127));
    assert_eq!(
        under(&["no-such-program-anywhere"]).status.code(),
        Some(127)
    );
    assert_eq!(under(&["/etc/passwd"]).status.code(), Some(126));
}

#[test]
fn wrong_arguments_of_oversub_itself_give_status_2() {
    for line in [
        &["run"][..],
        &["run", "--policy", "best", "--", "true"],
        &["dance"],
    ] {
        let told = outcome(&mut oversub(line));
        assert_eq!(told.status.code(), Some(2), "{line:?}: {told:?}");
        assert!(
            told.out.is_empty() && !told.err.is_empty(),
            "{line:?}: {told:?}"
        );
    }
}

#[test]
fn standard_input_reaches_the_program() {
    let mut child = oversub(&["run", "--soft", "--quiet", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"through and through")
        .unwrap();
    assert_eq!(finish(child).out, "through and through");
}

#[test]
fn signals_reach_the_program_and_its_death_by_one_is_seen() {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        let mut child = oversub(&["run", "--soft", "--quiet", "--", "sleep", "60"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        wait_for_program(pid, "sleep");
        kill(pid, signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(signal as i32));
    }
}

#[test]
fn a_program_that_handles_a_signal_handles_it_here_too() {
    let script = "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.02; done";
    let mut child = oversub(&["run", "--soft", "--quiet", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    kill(pid, Signal::SIGUSR1).unwrap();
    let told = finish(child);
    assert_eq!(
        (told.status.code(), told.out.as_str()),
        (Some(7), "caught\n")
    );
}

/// Waits until process `pid` has become `name`.
fn wait_for_program(pid: Pid, name: &str) {
    wait_for(name, || {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        (comm.trim() == name).then_some(())
    });
}

#[test]
fn the_program_has_no_child_that_it_did_not_make() {
    let script = "read line < /proc/$$/task/$$/children; echo \"[$line]\"";
    assert_eq!(under(&["sh", "-c", script]).out, "[]\n");
}

#[test]
fn daemon_and_folder_of_one_run_are_gone_after_it() {
    for script in ["exit 0", "kill -9 $$"] {
        let home = tempfile::tempdir().unwrap();
        let mut command = oversub(&["run", "--soft", "--", "sh", "-c"]);
        let told = outcome(
            command
                .arg(format!("ls $TMPDIR; {script}"))
                .env("TMPDIR", home.path()),
        );
        assert!(told.err.contains("no daemon at"), "{told:?}");
        assert!(
            told.out.contains("oversub-"),
            "the folder was there: {told:?}"
        );
        wait_for("the folder to go", || {
            std::fs::read_dir(home.path())
                .unwrap()
                .next()
                .is_none()
                .then_some(())
        });
        let home = home.path().to_string_lossy().into_owned();
        wait_for("the daemon to go", || {
            (!some_process_names(&home)).then_some(())
        });
    }
}

/// A process has `text` in its command line.
fn some_process_names(text: &str) -> bool {
    std::fs::read_dir("/proc")
        .expect("lists processes")
        .flatten()
        .any(|entry| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
}

#[test]
fn frameworks_are_steered_and_it_is_said_unless_the_user_chose() {
    let mut command = oversub(&["run", "--soft", "--no-daemon", "--", "env"]);
    let told = outcome(command.env("TF_GPU_ALLOCATOR", "mine"));
    for set in [
        "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync",
        "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync",
        "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async",
        "XLA_PYTHON_CLIENT_PREALLOCATE=false",
    ] {
        assert!(told.out.lines().any(|line| line == set), "{set}: {told:?}");
        assert!(told.err.contains(set), "{set} is not said: {told:?}");
    }
    assert!(
        told.out.lines().any(|line| line == "TF_GPU_ALLOCATOR=mine"),
        "{told:?}"
    );
}

#[test]
fn what_was_preloaded_before_is_kept() {
    let mut command = oversub(&["run", "--soft", "--no-daemon", "--quiet", "--", "env"]);
    let told = outcome(
        command
            .env("LD_PRELOAD", "libm.so.6")
            .env("LD_LIBRARY_PATH", "/mine"),
    );
    let value = |name: &str| {
        let line = told.out.lines().find(|line| line.starts_with(name));
        line.unwrap_or_default().to_owned()
    };
    assert!(
        value("LD_PRELOAD=").ends_with("/liboversub.so:libm.so.6"),
        "{told:?}"
    );
    assert!(value("LD_LIBRARY_PATH=").ends_with(":/mine"), "{told:?}");
}

#[test]
fn without_a_driver_it_is_said_how_to_go_on() {
    let mut command = oversub(&["run", "--no-daemon", "--", "true"]);
    let told = outcome(&mut command);
    assert!(told.status.success(), "{told:?}");
    // Where a driver is installed there is nothing to say.
    assert!(
        told.err.contains("--soft") || std::path::Path::new("/dev/nvidiactl").exists(),
        "{told:?}"
    );
}

#[test]
fn a_profile_is_kept_used_again_and_refused_by_name_when_damaged() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let profile = folder.path().join("sweep.profile");
    let path = profile.to_string_lossy().into_owned();
    let sweep = Workload::new("sweep", 1.5, 3);
    let run = || {
        let (_folder, stats) = stats_file();
        let told = outcome(&mut sweep.under_oversub(&["--profile", &path], &stats));
        assert_right(&told);
        told
    };
    let first = run();
    assert!(!first.err.contains("without a profile"), "{}", first.err);
    let kept = wait_for("the profile to be kept", || std::fs::read(&profile).ok());
    let written = || std::fs::metadata(&profile).and_then(|file| file.modified());
    let before = written().expect("it has been written");
    assert!(!run().err.contains("without a profile"));
    // Written when the daemon sees the program gone, which may be later than we do.
    wait_for("the profile to be written again", || {
        written().ok().filter(|&now| now != before)
    });
    std::fs::write(&profile, &kept[..kept.len() / 2]).expect("damages the profile");
    let damaged = run();
    let refusal = damaged.err.lines().find(|line| line.contains(&path));
    let refusal = refusal.expect("the damaged profile is named");
    assert!(refusal.contains("without a profile"), "{refusal}");
}
