//! Any bytes as a file.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    let _ = oversub_sim::trace::read_from(file, "fuzz");
});
