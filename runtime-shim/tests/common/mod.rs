//! What the tests share: the library as it is shipped, C programs and a driver that counts,
//! and a daemon in the test itself.
// Each test binary uses its part; a helper that fails fails its test.
#![allow(dead_code, clippy::unwrap_used)]

pub mod daemon;

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn target() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    while path.file_name().unwrap() != "deps" {
        path.pop();
    }
    path.pop();
    path.pop();
    path
}

/// `liboversub.so` in the release profile: the tests' own build unwinds and is not shipped.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = target().join("shim-as-shipped");
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "--release",
                "-p",
                "oversub-shim",
                "--target-dir",
            ])
            .arg(&folder)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success(), "liboversub.so does not build");
        folder.join("release/liboversub.so")
    })
}

fn compile(sources: &[&str], output: &Path, flags: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let status = Command::new("cc")
        .args([
            "-g",
            "-std=gnu17",
            "-Wno-deprecated-non-prototype",
            "-Wno-unknown-warning-option",
        ])
        .args(sources.iter().map(|source| folder.join(source)))
        .arg("-o")
        .arg(output)
        .args(flags)
        .status()
        .unwrap();
    assert!(status.success(), "{sources:?} does not compile");
}

/// What changes with the sources of the fixtures, and with how they are compiled.
fn fixtures_key() -> u64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    include_str!("mod.rs").hash(&mut hasher);
    hasher.finish()
}

/// Folder with the counting driver and the programs.
pub fn fixtures() -> &'static Path {
    static FIXTURES: OnceLock<PathBuf> = OnceLock::new();
    FIXTURES.get_or_init(|| {
        let made = target().join(format!("shim-fixtures-{:016x}", fixtures_key()));
        if made.is_dir() {
            return made;
        }
        // Several test processes may do this at the same time: each makes its own, then renames.
        let folder = made.with_extension(std::process::id().to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let here = format!("-L{}", folder.display());
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-lpthread"];
        compile(&["fake_driver.c"], &at("libcuda.so.1"), &shared);
        compile(&["program.c"], &at("program"), &[]);
        let direct = ["-DDIRECT", &here, "-l:libcuda.so.1"];
        compile(&["program.c"], &at("direct"), &direct);
        compile(
            &["next.c"],
            &at("liblast.so"),
            &["-DLAST", "-shared", "-fPIC"],
        );
        compile(&["next.c"], &at("libfirst.so"), &["-shared", "-fPIC"]);
        let order = [&here, "-Wl,--no-as-needed", "-lfirst", "-llast"];
        compile(&["asks_next.c"], &at("asks_next"), &order);
        if std::fs::rename(&folder, &made).is_err() {
            assert!(made.is_dir(), "{} cannot be made", made.display());
            std::fs::remove_dir_all(&folder).unwrap();
        }
        made
    })
}

/// A program under the shim that does what it is told.
pub struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it with further environment, and gives it a context.
    pub fn start(route: &str, environment: &[(&str, &str)]) -> Program {
        let mut program = Program::without_context(route, environment);
        assert_eq!(program.ask("context"), "0");
        program
    }

    /// Starts it with further environment.
    pub fn without_context(route: &str, environment: &[(&str, &str)]) -> Program {
        let name = if route == "direct" {
            "direct"
        } else {
            "program"
        };
        let mut command = command(&fixtures().join(name));
        command
            .arg(route)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.env("OVERSUB_SOCKET", "/nonexistent/oversub.sock");
        command.envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program {
            child,
            input,
            output,
        }
    }

    /// Its answer to one line.
    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.input.flush().unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert!(
            answer.ends_with('\n'),
            "the program ended at `{line}`: {:?}",
            self.child.wait()
        );
        answer.trim_end().to_owned()
    }

    /// The numbers in its answer, the first of which, a `CUresult`, must be 0.
    pub fn numbers(&mut self, line: &str) -> Vec<u64> {
        let answer = self.ask(line);
        let numbers: Vec<i64> = answer
            .split(' ')
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!(numbers[0], 0, "`{line}` failed: {answer}");
        numbers[1..].iter().map(|number| *number as u64).collect()
    }

    /// The one number in its answer.
    pub fn number(&mut self, line: &str) -> u64 {
        self.numbers(line)[0]
    }

    /// How often the driver's function was called.
    pub fn count(&mut self, name: &str) -> u64 {
        self.ask(&format!("count {name}")).parse().unwrap()
    }

    /// Asks until `done` accepts the answer.
    pub fn wait_for(&mut self, line: &str, done: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let answer = self.ask(line);
            if done(&answer) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "`{line}` stays {answer}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it.
    pub fn quit(mut self) {
        writeln!(self.input, "quit").unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a test waits for what must come; only a failure ever takes so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A program with the shim preloaded and the counting driver found.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let mut preload = OsString::from(library());
    if let Some(other) = std::env::var_os("LD_PRELOAD") {
        preload.push(":");
        preload.push(other);
    }
    command
        .env("LD_PRELOAD", preload)
        .env("LD_LIBRARY_PATH", fixtures());
    for name in ["DISABLE", "POLICY", "MEMORY_BUDGET", "RATIO_LIMIT", "LOG"] {
        command.env_remove(format!("OVERSUB_{name}"));
    }
    command
}
