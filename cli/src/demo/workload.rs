//! The workload programs: their names, their sizes, what they print.

use serde::Deserialize;

use crate::args::WorkloadName;
use crate::size::Size;

/// One workload of the demo.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Name in the results.
    pub name: &'static str,
    /// Program.
    pub program: &'static str,
    /// Arguments beside size and iterations.
    pub arguments: &'static [&'static str],
    /// It stays below the device memory on purpose.
    pub fits: bool,
}

/// Every workload, in the order shown.
pub const ALL: [WorkloadName; 6] = [
    WorkloadName::Sweep,
    WorkloadName::Train,
    WorkloadName::TrainCaching,
    WorkloadName::Gemm,
    WorkloadName::Gather,
    WorkloadName::Fits,
];

impl Workload {
    /// The workload of that name.
    pub fn of(name: WorkloadName) -> Self {
        let plain = |name| Self {
            name,
            program: name,
            arguments: &[],
            fits: false,
        };
        match name {
            WorkloadName::Sweep => plain("sweep"),
            WorkloadName::Gemm => plain("gemm"),
            WorkloadName::Gather => plain("gather"),
            WorkloadName::Fits => Self {
                fits: true,
                ..plain("fits")
            },
            WorkloadName::Train => Self {
                arguments: &["--allocator", "async"],
                ..plain("train")
            },
            WorkloadName::TrainCaching => Self {
                name: "train-caching",
                arguments: &["--allocator", "caching"],
                ..plain("train")
            },
        }
    }

    /// The working set to ask for on a device with `memory`, at `ratio`.
    pub fn working_set(&self, memory: Size, ratio: f64) -> Size {
        let share = if self.fits { 0.5 } else { ratio };
        Size((memory.0 as f64 * share) as u64)
    }
}

/// The last line of a workload program's output, with `--json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Output {
    /// Real footprint.
    pub bytes: u64,
    /// Content that is there at one moment of each iteration and read again before the
    /// next.
    pub carried_bytes: u64,
    /// Iterations made.
    pub iterations: u64,
    /// Wall time of all iterations, after set-up.
    pub seconds: f64,
    /// The result equals the reference computed on the CPU.
    pub ok: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_that_fits_stays_below_the_memory_at_every_ratio() {
        let fits = Workload::of(WorkloadName::Fits);
        assert_eq!(fits.working_set(Size(1000), 4.0), Size(500));
        assert_eq!(
            Workload::of(WorkloadName::Sweep).working_set(Size(1000), 1.5),
            Size(1500)
        );
    }

    #[test]
    fn every_name_is_shown_once() {
        let mut names: Vec<_> = ALL.iter().map(|name| Workload::of(*name).name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
