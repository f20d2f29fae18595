//! How much of the pool was handed out lately.
//!
//! A program that frees at the end of each step what it takes again in the next would have
//! its segments unmapped at every synchronisation, and with them all that was learned of
//! where their content is. So the pool keeps what it lately needed, and a little more.

/// Seconds that belong together.
const WINDOW_S: u64 = 10;

/// The most that was handed out in this stretch of time and in the one before, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    window: u64,
    highs: [u64; 2],
}

impl Recent {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            window: 0,
            highs: [0; 2],
        }
    }

    /// So many bytes are handed out.
    #[inline]
    pub fn note(&mut self, used: u64) {
        self.highs[0] = self.highs[0].max(used);
    }

    /// Bytes worth keeping at `now_s`, while `used` are handed out: the recent peak and a
    /// quarter of it, since free memory lies between used.
    pub fn worth_keeping(&mut self, now_s: u64, used: u64) -> u64 {
        let window = now_s / WINDOW_S;
        if window != self.window {
            self.highs = [used, self.highs[0]];
            self.window = window;
        }
        let peak = self.highs[0].max(self.highs[1]);
        peak.saturating_add(peak / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_worth_keeping_for_one_to_two_windows() {
        let mut recent = Recent::new();
        recent.note(400);
        recent.note(100);
        assert_eq!(recent.worth_keeping(3, 0), 500);
        assert_eq!(recent.worth_keeping(9, 0), 500);
        assert_eq!(recent.worth_keeping(12, 0), 500, "the window before");
        recent.note(40);
        assert_eq!(recent.worth_keeping(25, 8), 50);
        assert_eq!(recent.worth_keeping(31, 8), 10);
    }

    #[test]
    fn each_step_renews_it() {
        let mut recent = Recent::new();
        for second in 0..100 {
            recent.note(400);
            assert_eq!(recent.worth_keeping(second, 0), 500);
        }
    }
}
