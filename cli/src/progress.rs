//! Where a long measurement stands, on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Steps done and time passed: one moving line on a terminal, one line per step elsewhere.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    steps: usize,
    step: usize,
    line: Option<ProgressBar>,
}

impl Progress {
    /// Nothing done of `steps`.
    pub fn new(steps: usize) -> Self {
        let line = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            if let Ok(style) =
                ProgressStyle::with_template("[{elapsed_precise}] {pos}/{len} {bar:20} {msg}")
            {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self {
            begun: Instant::now(),
            steps,
            step: 0,
            line,
        }
    }

    /// The next step begins.
    pub fn step(&mut self, what: String) {
        if let Some(line) = &self.line {
            line.set_position(self.step as u64);
            line.set_message(what);
        } else {
            let seconds = self.begun.elapsed().as_secs_f64();
            eprintln!("[{seconds:6.1} s] {}/{} {what}", self.step + 1, self.steps);
        }
        self.step += 1;
    }

    /// All steps are done.
    pub fn done(self) {
        if let Some(line) = self.line {
            line.finish_and_clear();
        }
    }
}
