//! How long launches take, compared with the trace.

use oversub_sim::trace::Program;

/// What becomes of the times of a trace's launches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    /// They are this many times as long.
    pub scale: f64,
    /// And each then up to so many percent longer or shorter.
    pub noise_percent: f64,
    /// By which stream of random numbers.
    pub seed: u64,
}

impl Times {
    /// The program with these times.
    pub fn of(&self, program: Program) -> Program {
        let scaled = program.scaled(self.scale);
        if self.noise_percent == 0.0 {
            return scaled;
        }
        scaled.varied(self.noise_percent, self.seed)
    }
}
