use std::io::Write;

use super::super::program::{Call, Launch, Mode};
use super::*;

const HEADER: &str = r#"{"format":"oversub-trace","version":1,"workload":"w","source":"record","gpu":{"name":"g","memory_bytes":1},"iterations":1,"footprint_bytes":4194304,"later":[{}]}"#;
const EVENTS: &str = r#"{"e":"alloc","addr":4194304,"bytes":4194304}
{"e":"use","addr":4194304,"bytes":4194304}
{"e":"host","r":[],"w":[[4194304,8]]}
{"e":"iter","n":0}
{"e":"k","fn":"a\u0041","sig":"ff","us":1.5,"r":[[4194304,65536]],"w":[[4194304,2097152]],"v":1,"sync":1}
{"e":"k","fn":"memcpyDtoH","sig":"0","us":0,"r":[[4194304,8]],"w":[],"p":[7],"unknown":null}
{"e":"unuse","addr":4194304}
{"e":"free","addr":4194304}"#;

fn pack(text: &str) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn read_text(text: &str) -> Result<Program, TraceError> {
    read_from(pack(text).as_slice(), "t")
}

/// The message for the good trace with line `line` (from 1) replaced by `text`.
fn message(line: usize, text: &str) -> String {
    let whole = format!("{HEADER}\n{EVENTS}\n");
    let mut lines: Vec<&str> = whole.lines().collect();
    lines[line - 1] = text;
    match read_text(&lines.join("\n")) {
        Ok(_) => "read".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_event_reaches_the_program() {
    let program = read_text(&format!("{HEADER}\n{EVENTS}\n")).unwrap();
    assert_eq!(program.name(), "t");
    assert_eq!(program.footprint_bytes(), 4 << 20);
    assert_eq!(program.steps().len(), 8);
    assert_eq!(program.iterations().first(), Some(&(0..2)));
    assert_eq!(program.kernel_name(Launch(0)), "aA");
    let first = program.launch(Launch(0));
    assert_eq!((first.signature, first.time), (255, Nanos(1500)));
    assert!(first.sync && first.varies && first.kind == Kind::Kernel);
    let modes: Vec<Mode> = program.accesses(Launch(0)).iter().map(|a| a.mode).collect();
    assert_eq!(modes, [Mode::Update, Mode::Overwrite]);
    let second = program.launch(Launch(1));
    assert!(!second.sync && !second.varies && second.kind == Kind::ToHost);
    assert_eq!(program.pointers(Launch(1)), [7]);
}

#[test]
fn copies_and_memsets_say_what_they_overwrite_and_read() {
    let region = |bytes: u64| Region {
        address: 4_194_304,
        bytes,
    };
    let call = |name: &str, reads: &str, writes: &str| {
        let line = format!(
            r#"{{"e":"k","fn":"{name}","sig":"1","us":1,"r":[{reads}],"w":[{writes}],"p":[7]}}"#
        );
        let whole = format!("{HEADER}\n{EVENTS}\n");
        let mut lines: Vec<&str> = whole.lines().collect();
        lines[6] = &line;
        read_text(&lines.join("\n")).unwrap().call(Launch(1))
    };
    let (small, large) = ("[4194304,8]", "[4194304,2097152]");
    let to_host = Call {
        overwrites: None,
        reads: Some(region(8)),
    };
    assert_eq!(call("memcpyDtoH", small, ""), Some(to_host));
    let fill = Call {
        overwrites: Some(region(2 << 20)),
        reads: None,
    };
    assert_eq!(call("memset", "", large), Some(fill));
    assert_eq!(call("kernel", small, large), None);
    let pieces = "[4194304,8],[4194320,8]";
    assert_eq!(call("memcpyHtoD", "", pieces), None, "not one range");
}

#[test]
fn of_indexed_accesses_as_much_is_used_as_the_line_says() {
    let launch =
        r#"{"e":"k","fn":"rows","sig":"1","us":1,"r":[[4194304,2097152]],"w":[],"sp":[5,3]}"#;
    let events = EVENTS.replacen(
        "{\"e\":\"unuse\"",
        &format!("{launch}\n{{\"e\":\"unuse\""),
        1,
    );
    let program = read_text(&format!("{HEADER}\n{events}\n")).unwrap();
    let [access] = program.accesses(Launch(2)) else {
        panic!("one block");
    };
    assert_eq!((access.pages, access.leaves.count()), (5, 3));
    assert!(program.is_indexed(access.block));
    assert!(
        !read_text(&format!("{HEADER}\n{EVENTS}\n"))
            .unwrap()
            .has_indexed()
    );
}

#[test]
fn a_last_line_without_its_newline_counts() {
    assert!(read_text(&format!("{HEADER}\n{EVENTS}")).is_ok());
}

#[test]
fn errors_name_the_file_the_line_and_what_is_wrong() {
    for (line, text, expected) in [
        (1, "{}", "t:1: column 2: missing field `format`"),
        (
            1,
            r#"{"format":"x","version":1}"#,
            "t:1: not a trace: `format` is \"x\"",
        ),
        (
            1,
            r#"{"format":"oversub-trace","version":2}"#,
            "t:1: version 2 of",
        ),
        (
            1,
            r#"{"format":"oversub-trace","version":1}"#,
            "missing field `workload`",
        ),
        (3, "no", "t:3: column 2: expected"),
        (3, "", "t:3: column 0: EOF"),
        (3, r#"{"addr":1}"#, "t:3: column 10: missing field `e`"),
        (3, r#"{"e":"use","addr":4194304}"#, "missing field `bytes`"),
        (
            3,
            r#"{"e":"use","addr":-1,"bytes":1}"#,
            "column 20: invalid value",
        ),
        (4, r#"{"e":"sing"}"#, "t:4: unknown event \"sing\""),
        (
            4,
            r#"{"e":"alloc","addr":18446744073709551615,"bytes":5}"#,
            "end past the highest",
        ),
        (
            4,
            r#"{"e":"alloc","addr":8388608,"bytes":70368744177664}"#,
            "t:4: more than 4194304 blocks",
        ),
        (
            4,
            r#"{"e":"host","r":[[0,8]],"w":[]}"#,
            "t:4: no allocation at 0x0",
        ),
        (
            6,
            r#"{"e":"k","fn":"a","sig":"xyz","us":1,"r":[],"w":[]}"#,
            "`sig` is \"xyz\"",
        ),
        (
            6,
            r#"{"e":"k","fn":"a","sig":"1","us":-1,"r":[],"w":[]}"#,
            "`us` is -1",
        ),
        (
            6,
            r#"{"e":"k","fn":"a","sig":"1","us":1e300,"r":[],"w":[]}"#,
            "`us` is 1",
        ),
        (
            6,
            r#"{"e":"k","fn":"a","sig":"1","us":1,"r":[[1]],"w":[]}"#,
            "invalid length 1",
        ),
        (
            5,
            r#"{"e":"iter","n":1}"#,
            "t:5: iteration 1 where 0 is next",
        ),
        (
            5,
            r#"{"e":"host","r":[],"w":[]}"#,
            "t:9: the header announces 1 iterations, but 0",
        ),
    ] {
        let message = message(line, text);
        assert!(
            message.contains(expected),
            "{message:?} does not say {expected:?}"
        );
    }
}

#[test]
fn deep_nesting_is_an_error_not_a_crash() {
    let deep = format!("{{\"x\":{}", "[".repeat(1 << 20));
    assert!(
        message(3, &deep).contains("t:3: column"),
        "{}",
        message(3, &deep)
    );
}

#[test]
fn a_line_over_the_limit_is_refused() {
    let long = " ".repeat(LINE_BYTES as usize + 1);
    assert!(message(3, &long).contains("t:3: longer than"));
}

#[test]
fn a_frame_cut_anywhere_is_an_error() {
    let whole = pack(&format!("{HEADER}\n{EVENTS}\n"));
    for length in 0..whole.len() {
        assert!(
            read_from(&whole[..length], "t").is_err(),
            "{length} of {} bytes",
            whole.len()
        );
    }
    let error = read_from(&whole[..whole.len() - 1], "t")
        .unwrap_err()
        .to_string();
    assert!(error.contains("damaged or incomplete"), "{error}");
}

#[test]
fn a_flipped_bit_is_found_by_the_checksum() {
    let whole = pack(&format!("{HEADER}\n{EVENTS}\n"));
    for byte in [whole.len() / 2, whole.len() - 1] {
        let mut broken = whole.clone();
        broken[byte] ^= 1;
        assert!(read_from(broken.as_slice(), "t").is_err());
    }
}

#[test]
fn nothing_may_follow_the_frame() {
    let mut two = pack(&format!("{HEADER}\n{EVENTS}\n"));
    two.extend(pack("{}\n"));
    let error = read_from(two.as_slice(), "t").unwrap_err().to_string();
    assert!(error.contains("more data follows"), "{error}");
}

#[test]
fn a_missing_file_and_an_empty_trace_are_told_apart() {
    let missing = read(Path::new("/nonexistent/x.trace.jsonl.zst")).unwrap_err();
    assert!(matches!(missing, TraceError::Open { .. }));
    let empty = read_text("").unwrap_err().to_string();
    assert!(empty.contains("empty"), "{empty}");
}
