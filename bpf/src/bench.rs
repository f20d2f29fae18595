//! How long it takes from a probe point being hit to its event being in user space.
//!
//! Measured in this process, on a probe point of its own with the same first instruction as
//! the soft GPU's: a thread hits it at a given rate, with the time of the hit as argument,
//! and this thread waits for the intake's descriptor and drains it, as the engine's does.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::event::{What, kind};
use crate::intake::{AttachError, Intake};
use crate::target::{Target, TargetError};

/// What was measured. Times in microseconds, from before the hit to the event being handed
/// over, the trap included.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ProbeLatency {
    /// Hits made.
    pub hits: u64,
    /// Hits that never arrived.
    pub lost: u64,
    /// Hits a second that were reached.
    pub rate: f64,
    /// Half of the events arrived within.
    pub p50_us: f64,
    /// 90 % arrived within.
    pub p90_us: f64,
    /// 99 % arrived within.
    pub p99_us: f64,
    /// The slowest one.
    pub max_us: f64,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The probe cannot be attached here.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// This executable cannot be probed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The place of the probe point in this executable's file is unknown.
    #[error("the probe point is in no file that this process has mapped")]
    Unmapped,
    /// The intake has no events to wait for, or cannot be read.
    #[error("cannot wait for events: {0}")]
    Wait(#[from] std::io::Error),
}

/// The probe point.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn probe_point(_time_ns: u64) {
    core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
}

/// The probe point.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn probe_point(_time_ns: u64) {
    core::arch::naked_asm!("nop", "ret")
}

/// Hits a probe point `hits` times at `rate` hits a second and measures each. `intake` gets
/// this executable as one of its files; its other events meanwhile are thrown away.
///
/// # Errors
/// The probes are off or refused; nothing was measured.
pub fn probe_latency(
    intake: &mut Intake,
    rate: u32,
    hits: u32,
) -> Result<ProbeLatency, BenchError> {
    let (path, offset) = place_of(probe_point as *const () as u64).ok_or(BenchError::Unmapped)?;
    let target = Target::at(&path, vec![(offset, kind::POPULATE)])?;
    intake.attach(&target)?;
    let me = std::process::id();
    let period_ns = 1_000_000_000 / u64::from(rate.max(1));
    let mut latencies_ns: Vec<u64> = Vec::with_capacity(hits as usize);
    let begin_ns = now_ns();
    let mut end_ns = begin_ns;
    std::thread::scope(|scope| -> Result<(), BenchError> {
        let hitter = scope.spawn(move || {
            for hit in 0..u64::from(hits) {
                let due_ns = begin_ns + hit * period_ns;
                let early_ns = due_ns.saturating_sub(now_ns());
                if early_ns > 0 {
                    std::thread::sleep(Duration::from_nanos(early_ns));
                }
                probe_point(now_ns());
            }
            now_ns()
        });
        let mut quiet = false;
        // Once the last hit is made, one quiet wait means that nothing more comes.
        while !(quiet && hitter.is_finished()) {
            let ended = hitter.is_finished();
            quiet = !wait(intake, Duration::from_millis(50))? && ended;
            intake.drain(&mut |event| {
                if let What::Populate { address, .. } = event.what
                    && event.tgid == Some(me)
                {
                    latencies_ns.push(now_ns().saturating_sub(address));
                }
            })?;
        }
        end_ns = hitter.join().unwrap_or(end_ns);
        Ok(())
    })?;
    latencies_ns.sort_unstable();
    let seconds = end_ns.saturating_sub(begin_ns) as f64 / 1e9;
    let lost = u64::from(hits).saturating_sub(latencies_ns.len() as u64);
    Ok(ProbeLatency {
        hits: u64::from(hits),
        lost,
        rate: if seconds > 0.0 {
            f64::from(hits) / seconds
        } else {
            0.0
        },
        p50_us: quantile_us(&latencies_ns, 0.50),
        p90_us: quantile_us(&latencies_ns, 0.90),
        p99_us: quantile_us(&latencies_ns, 0.99),
        max_us: quantile_us(&latencies_ns, 1.0),
    })
}

/// The value below which that share of the sorted values lies; 0 without values.
fn quantile_us(sorted_ns: &[u64], share: f64) -> f64 {
    let last = sorted_ns.len().saturating_sub(1);
    let index = (share * last as f64).round() as usize;
    sorted_ns
        .get(index.min(last))
        .map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1e3)
}

/// Waits until there are events; whether there are.
fn wait(intake: &Intake, timeout: Duration) -> Result<bool, BenchError> {
    let closed = || std::io::Error::other("no probe is loaded");
    let fd = intake.epoll_fd().ok_or_else(closed)?.as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid pollfd, which lives through the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
    Ok(ready > 0)
}

/// `CLOCK_MONOTONIC`, the clock of the kernel's records.
fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The file and the offset in it that are mapped at `address`.
fn place_of(address: u64) -> Option<(PathBuf, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        // 55d0c0a00000-55d0c0a21000 r-xp 00010000 08:01 131 /usr/bin/oversub
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        let path = fields.nth(2)?.trim_start();
        let inside = (start..end).contains(&address) && path.starts_with('/');
        inside.then(|| (PathBuf::from(path), offset + (address - start)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_in_the_file_that_it_was_loaded_from() {
        let (path, offset) = place_of(probe_point as *const () as u64).unwrap();
        assert_eq!(path, std::env::current_exe().unwrap());
        let file = std::fs::read(path).unwrap();
        let code = &file[usize::try_from(offset).unwrap()..][..6];
        #[cfg(target_arch = "x86_64")]
        assert_eq!(code, [0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3]);
        #[cfg(not(target_arch = "x86_64"))]
        assert_eq!(code.len(), 6);
        assert_eq!(place_of(1), None);
    }

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let sorted: Vec<u64> = (0..=100).map(|value| value * 1000).collect();
        assert_eq!(quantile_us(&sorted, 0.5), 50.0);
        assert_eq!(quantile_us(&sorted, 0.99), 99.0);
        assert_eq!(quantile_us(&sorted, 1.0), 100.0);
        assert_eq!(quantile_us(&[], 0.5), 0.0);
    }
}
