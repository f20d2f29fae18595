//! Rare remarks, appended to the file that `OVERSUB_LOG` names. Never from the launch path.

use oversub_shim_core::abi::CuResult;

use crate::state::{self, ErrnoKept};

/// Remarks with a driver's status.
pub fn error(text: &str, result: CuResult) {
    write(&[
        text.as_bytes(),
        b": CUDA error ",
        decimal(result.0.into(), &mut [0; 20]),
    ]);
}

/// Remarks.
pub fn note(text: &str) {
    write(&[text.as_bytes()]);
}

/// Remarks with a number.
pub fn number(text: &str, value: u64) {
    write(&[text.as_bytes(), b" ", decimal(value, &mut [0; 20])]);
}

fn decimal(mut value: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    for (index, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
        start = index;
        if value == 0 {
            break;
        }
    }
    digits.get(start..).unwrap_or_default()
}

fn write(parts: &[&[u8]]) {
    let Some(settings) = state::active() else {
        return;
    };
    if settings.log.as_bytes().is_empty() {
        return;
    }
    let _errno = ErrnoKept::new();
    let mut line = [0_u8; 256];
    let mut used = 0;
    let process = u64::from(std_process_id());
    let mut digits = [0; 20];
    let head: [&[u8]; 3] = [b"oversub[", decimal(process, &mut digits), b"]: "];
    for byte in head
        .iter()
        .chain(parts)
        .flat_map(|part| part.iter())
        .take(line.len() - 1)
    {
        if let Some(cell) = line.get_mut(used) {
            *cell = *byte;
            used += 1;
        }
    }
    if let Some(cell) = line.get_mut(used) {
        *cell = b'\n';
        used += 1;
    }
    let options = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a terminated path and a local buffer.
    unsafe {
        let path = settings.log.with_zero().as_ptr().cast();
        let file = libc::open(path, options, 0o600);
        if file >= 0 {
            libc::write(file, line.as_ptr().cast(), used);
            libc::close(file);
        }
    }
}

fn std_process_id() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }.unsigned_abs()
}
