//! How a simulated program differs from its trace.

use oversub_sim::trace::{Program, RepeatError};

/// What becomes of a trace's launches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Variant {
    /// There are at least so many iterations.
    pub iterations: usize,
    /// Launches take this many times as long.
    pub scale: f64,
    /// And each then up to so many percent more or less.
    pub noise_percent: f64,
    /// By which stream of random numbers.
    pub seed: u64,
}

impl Variant {
    /// The program as it is to be run.
    ///
    /// # Errors
    /// Where there are not so many iterations and they cannot be repeated.
    pub fn of(&self, program: Program) -> Result<Program, RepeatError> {
        let scaled = program.repeated(self.iterations)?.scaled(self.scale);
        Ok(if self.noise_percent == 0.0 {
            scaled
        } else {
            scaled.varied(self.noise_percent, self.seed)
        })
    }
}
