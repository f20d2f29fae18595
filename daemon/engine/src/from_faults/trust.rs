//! Whether predictions are good enough to act on.
//!
//! They are followed from faults alone while they are not, which costs nothing: a program
//! that nobody can predict runs as with the driver by itself. Prefetches that prove wasted
//! cost trust like wrong predictions, and lost trust takes longer to regain each time.

/// Part of the way to full trust that a right prediction goes, one in.
const GAIN: f64 = 8.0;
/// Part of the trust that a wrong one takes, one in.
const LOSS: f64 = 4.0;
/// From here on predictions are acted on.
const ENOUGH: f64 = 0.5;
/// Right predictions to wait for after trust was lost: at first, and at most.
const PAUSE: (u32, u32) = (16, 4096);

#[derive(Debug)]
pub(super) struct Trust {
    level: f64,
    /// Right predictions still to wait for.
    wait: u32,
    pause: u32,
    /// Right predictions since trust was gained.
    proved: u32,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            level: 0.0,
            wait: 0,
            pause: PAUSE.0,
            proved: 0,
        }
    }
}

impl Trust {
    pub fn steers(&self) -> bool {
        self.level >= ENOUGH && self.wait == 0
    }

    /// A use was predicted.
    pub fn right(&mut self) {
        self.level += (1.0 - self.level) / GAIN;
        self.wait = self.wait.saturating_sub(1);
        if self.steers() {
            self.proved += 1;
            if self.proved >= 4 * self.pause {
                self.pause = PAUSE.0;
            }
        }
    }

    /// A use was not.
    pub fn wrong(&mut self) {
        self.lose();
    }

    /// A prefetched block left unused.
    pub fn wasted(&mut self) {
        self.lose();
    }

    fn lose(&mut self) {
        let steered = self.steers();
        self.level -= self.level / LOSS;
        if steered && !self.steers() {
            self.wait = self.pause;
            self.pause = (self.pause * 2).min(PAUSE.1);
            self.proved = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights_until_steering(trust: &mut Trust) -> u32 {
        let mut rights = 0;
        while !trust.steers() {
            trust.right();
            rights += 1;
        }
        rights
    }

    #[test]
    fn trust_is_earned_by_a_few_right_predictions_and_lost_by_fewer_wrong_ones() {
        let mut trust = Trust::default();
        assert_eq!(rights_until_steering(&mut trust), 6);
        trust.wrong();
        assert!(!trust.steers());
        let mut trust = Trust::default();
        (0..100).for_each(|_| trust.right());
        trust.wrong();
        assert!(trust.steers(), "one slip does not undo a long record");
        (0..3).for_each(|_| trust.wasted());
        assert!(!trust.steers());
    }

    #[test]
    fn each_loss_doubles_the_wait_until_it_has_proved_itself() {
        let mut trust = Trust::default();
        rights_until_steering(&mut trust);
        let mut waits = Vec::new();
        for _ in 0..3 {
            while trust.steers() {
                trust.wrong();
            }
            waits.push(rights_until_steering(&mut trust));
        }
        assert_eq!(waits, [16, 32, 64]);
        (0..4 * 128).for_each(|_| trust.right());
        while trust.steers() {
            trust.wrong();
        }
        assert_eq!(rights_until_steering(&mut trust), 16);
    }
}
