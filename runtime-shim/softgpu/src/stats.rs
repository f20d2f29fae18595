//! The counters as a file, for whoever started the program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::counters::Snapshot;

static UNSUPPORTED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call that the soft GPU does not support.
pub fn count_unsupported(name: &'static str) {
    *UNSUPPORTED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(name)
        .or_default() += 1;
}

/// The calls that were not supported so far, by name.
pub fn unsupported() -> BTreeMap<&'static str, u64> {
    UNSUPPORTED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Writes the counters; readers see the old file or the new one, never a part. What is there
/// and no regular file (a pipe, `/dev/null`) is written to and stays what it is.
///
/// # Errors
/// Of the file system.
pub fn write(path: &Path, counters: &Snapshot, device_bytes: u64) -> io::Result<()> {
    let text = json(counters, device_bytes, &unsupported());
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, text);
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, path)
}

/// One JSON object with all counters. Names of functions need no escape.
fn json(c: &Snapshot, device_bytes: u64, unsupported: &BTreeMap<&str, u64>) -> String {
    let mut calls = String::new();
    for (name, count) in unsupported {
        let comma = if calls.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(calls, "{comma}\"{name}\":{count}");
    }
    format!(
        concat!(
            "{{\"device_bytes\":{},\"managed_peak_resident_bytes\":{},",
            "\"faults\":{},\"host_faults\":{},\"batches\":{},",
            "\"bytes_in\":{},\"bytes_out\":{},",
            "\"bytes_in_by_cause\":{{\"fault\":{},\"density\":{},\"call\":{},\"copy\":{}}},",
            "\"bytes_out_by_cause\":{{\"eviction\":{},\"call\":{},\"host_fault\":{}}},",
            "\"copied_in_bytes\":{},\"copied_out_bytes\":{},\"remote_bytes\":{},\"populated_bytes\":{},",
            "\"evictions\":{{\"unused\":{},\"discarded\":{},\"used\":{}}},",
            "\"stall_s\":{:.6},\"compute_s\":{:.6},\"kernels\":{},\"copies\":{},",
            "\"unsupported_calls\":{{{}}}}}\n"
        ),
        device_bytes,
        c.managed_peak_resident_bytes,
        c.faults,
        c.host_faults,
        c.batches,
        c.bytes_in(),
        c.bytes_out(),
        c.bytes_in_fault,
        c.bytes_in_density,
        c.bytes_in_call,
        c.bytes_in_copy,
        c.bytes_out_eviction,
        c.bytes_out_call,
        c.bytes_out_host_fault,
        c.copied_in_bytes,
        c.copied_out_bytes,
        c.remote_bytes,
        c.populated_bytes,
        c.evictions_unused,
        c.evictions_discarded,
        c.evictions_used,
        c.stall_ns as f64 / 1e9,
        c.compute_ns as f64 / 1e9,
        c.kernels,
        c.copies,
        calls,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_written_to_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a terminated name.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let reader = std::thread::spawn({
            let path = path.clone();
            move || std::fs::read_to_string(path)
        });
        write(&path, &Snapshot::default(), 7).unwrap();
        let text = reader.join().unwrap().unwrap();
        assert!(text.starts_with("{\"device_bytes\":7,"), "{text}");
        assert!(!std::fs::metadata(&path).unwrap().is_file());
    }

    #[test]
    fn every_counter_has_its_key_and_unsupported_calls_their_names() {
        let counters = Snapshot {
            faults: 3,
            bytes_in_call: 5,
            bytes_in_fault: 6,
            ..Snapshot::default()
        };
        let calls = BTreeMap::from([("cuArrayCreate_v2", 2), ("cuGraphLaunch", 1)]);
        let text = json(&counters, 1 << 20, &calls);
        for part in [
            "\"device_bytes\":1048576,",
            "\"faults\":3,",
            "\"bytes_in\":11,",
            "\"bytes_in_by_cause\":{\"fault\":6,\"density\":0,\"call\":5,\"copy\":0}",
            "\"evictions\":{\"unused\":0,\"discarded\":0,\"used\":0}",
            "\"stall_s\":0.000000,",
            "\"unsupported_calls\":{\"cuArrayCreate_v2\":2,\"cuGraphLaunch\":1}}",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
