//! Any text as a trace: everything behind the decompressor.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(frame) = zstd::stream::encode_all(text, 1) else {
        return;
    };
    let _ = oversub_sim::trace::read_from(frame.as_slice(), "fuzz");
});
