//! Small traces, written as a recorder would write them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Bytes of a block.
pub const BLOCK: u64 = 2 << 20;
const BASE: u64 = 1 << 40;

/// A trace of a program that goes over a state of `blocks` blocks in each iteration, a
/// block a launch, `us` each, and reads and writes it; and takes and gives back a scratch
/// part of two blocks meanwhile.
pub fn sweep(blocks: u64, iterations: u64, us: u64) -> String {
    let footprint = (blocks + 2) * BLOCK;
    let mut text = format!(
        r#"{{"format":"oversub-trace","version":1,"workload":"sweep","source":"generated","gpu":{{"name":"none","memory_bytes":{footprint}}},"iterations":{iterations},"footprint_bytes":{footprint}}}
{{"e":"alloc","addr":{BASE},"bytes":{footprint}}}
{{"e":"use","addr":{BASE},"bytes":{}}}
"#,
        blocks * BLOCK
    );
    let scratch = BASE + blocks * BLOCK;
    // Writing into a String cannot fail.
    for iteration in 0..iterations {
        let _ = writeln!(text, r#"{{"e":"iter","n":{iteration}}}"#);
        let _ = writeln!(
            text,
            r#"{{"e":"use","addr":{scratch},"bytes":{}}}"#,
            2 * BLOCK
        );
        for block in 0..blocks {
            let part = format!("[[{},{BLOCK}]]", BASE + block * BLOCK);
            let _ = writeln!(
                text,
                r#"{{"e":"k","fn":"update","sig":"{block:x}","us":{us},"r":{part},"w":{part}}}"#
            );
        }
        let _ = writeln!(
            text,
            r#"{{"e":"k","fn":"reduce","sig":"ffff","us":{us},"r":[],"w":[[{scratch},{}]]}}"#,
            2 * BLOCK
        );
        let _ = writeln!(text, r#"{{"e":"unuse","addr":{scratch}}}"#);
    }
    text
}

/// Packs a trace's lines into `NAME.trace.jsonl.zst` of a folder.
///
/// # Panics
/// Where that cannot be written.
pub fn write(folder: &Path, name: &str, lines: &str) -> PathBuf {
    let path = folder.join(format!("{name}.trace.jsonl.zst"));
    let file = File::create(&path).expect("creates a trace");
    let mut encoder = zstd::stream::Encoder::new(file, 3).expect("starts a frame");
    encoder.include_checksum(true).expect("adds a checksum");
    encoder.write_all(lines.as_bytes()).expect("packs lines");
    encoder.finish().expect("ends the frame");
    path
}
