//! The library as it is shipped: what it needs, what it exports, how large it is.

// Helpers of a test are part of it.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use common::library;

/// As in `src/hooks/coverage.rs`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Coverage {
    symbol: *const c_char,
    family: *const c_char,
    since: c_int,
    per_thread: c_int,
    duty: c_int,
}

struct Entry {
    symbol: String,
    family: String,
    since: c_int,
    per_thread: bool,
    duty: &'static str,
}

fn entries() -> Vec<Entry> {
    let path = CString::new(library().as_os_str().as_bytes()).unwrap();
    // SAFETY: the library's table, by the signature it is declared with.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null());
        let symbol = libc::dlsym(handle, c"oversub_entry_point".as_ptr());
        assert!(!symbol.is_null());
        let entry =
            std::mem::transmute::<*mut libc::c_void, extern "C" fn(usize) -> Coverage>(symbol);
        let text = |text: *const c_char| CStr::from_ptr(text).to_str().unwrap().to_owned();
        (0..)
            .map(|index| entry(index))
            .take_while(|entry| !entry.symbol.is_null())
            .map(|entry| Entry {
                symbol: text(entry.symbol),
                family: text(entry.family),
                since: entry.since,
                per_thread: entry.per_thread != 0,
                duty: ["transform", "observe", "fix"][entry.duty as usize],
            })
            .collect()
    }
}

fn tool(program: &str, options: &[&str]) -> String {
    let output = Command::new(program)
        .args(options)
        .arg(library())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_exports_its_entry_points_and_nothing_else() {
    let text = tool("nm", &["-D", "--defined-only"]);
    let exported: BTreeSet<&str> = text
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    let entries = entries();
    let mut expected: BTreeSet<&str> = entries.iter().map(|entry| entry.symbol.as_str()).collect();
    assert_eq!(expected.len(), entries.len(), "listed twice");
    expected.extend(["dlsym", "dlvsym", "oversub_entry_point"]);
    assert_eq!(exported, expected);
}

#[test]
fn every_form_for_per_thread_streams_follows_its_plain_form() {
    let entries = entries();
    for pair in entries.windows(2).filter(|pair| pair[1].per_thread) {
        assert_eq!(pair[0].family, pair[1].family);
        assert_eq!((pair[0].since, pair[0].per_thread), (pair[1].since, false));
        let suffixed = ["_ptsz", "_ptds"].map(|suffix| format!("{}{suffix}", pair[0].symbol));
        assert!(suffixed.contains(&pair[1].symbol), "{}", pair[1].symbol);
    }
}

#[test]
fn it_needs_the_c_library_and_nothing_else_of_the_process() {
    let dynamic = tool("readelf", &["-dW"]);
    let needed: Vec<&str> = dynamic
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .collect();
    assert_eq!(needed.len(), 1, "{needed:?}");
    assert!(needed[0].contains("[libc.so.6]"));
    assert!(
        dynamic.contains("SYMBOLIC"),
        "our references must reach ourselves"
    );
    assert!(
        !dynamic.contains("INIT_ARRAYSZ)        16"),
        "nothing runs when it is loaded"
    );
    let headers = tool("readelf", &["-lW"]);
    assert!(!headers.contains(" TLS "), "no thread-local storage");
}

#[test]
fn it_does_not_bring_panics_or_an_unwinder() {
    let symbols = tool("nm", &["-C"]);
    for word in ["_Unwind_", "rust_eh_personality", "std::"] {
        assert!(!symbols.contains(word), "{word}");
    }
}

#[test]
fn it_is_small() {
    let stripped = std::env::temp_dir().join(format!("oversub-size-{}.so", std::process::id()));
    let status = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(library())
        .status()
        .unwrap();
    assert!(status.success());
    let bytes = std::fs::metadata(&stripped).unwrap().len();
    std::fs::remove_file(&stripped).unwrap();
    println!("liboversub.so, stripped: {bytes} bytes");
    assert!(bytes < 192 << 10, "{bytes} bytes");
}

#[test]
fn the_coverage_table_can_be_printed() {
    let mut table = String::from("| entry point | from CUDA | duty |\n| --- | --- | --- |\n");
    let entries = entries();
    for (index, entry) in entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| !entry.per_thread)
    {
        let next = entries.get(index + 1).filter(|next| next.per_thread);
        let forms = next.map_or(String::new(), |next| format!(", `{}`", next.symbol));
        let since = format!("{}.{}", entry.since / 1000, entry.since % 1000 / 10);
        writeln!(
            table,
            "| `{}`{forms} | {since} | {} |",
            entry.symbol, entry.duty
        )
        .unwrap();
    }
    println!("{table}");
    assert!(table.contains("| `cuLaunchKernel`, `cuLaunchKernel_ptsz` | 4.0 | observe |"));
}
