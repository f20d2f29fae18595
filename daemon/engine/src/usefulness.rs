//! What became of prefetched bytes: useful, late or wasted.
//!
//! Owns the counters and their window for the breaker. A byte is issued once and ends as
//! exactly one of the three, or is still open, or is taken back where nobody will ever know.

/// Prefetched bytes by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usefulness {
    pub issued_bytes: u64,
    /// On the device when the launch that needed them ran.
    pub useful_bytes: u64,
    /// Still under way when they were needed.
    pub late_bytes: u64,
    /// Gone from the device before anything used them.
    pub wasted_bytes: u64,
    /// Issued as well, but judged no more.
    pub taken_back_bytes: u64,
}

/// How much of what a launch was taken to use it needed, as far as its absent blocks show:
/// nobody sees accesses that hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    touched: u64,
    of: u64,
}

impl Share {
    /// Nothing says that it did not need all.
    pub(crate) const ALL: Self = Self { touched: 1, of: 1 };

    /// What it needed of these nobody knows: nothing is learned from them.
    pub(crate) const UNKNOWN: Self = Self { touched: 0, of: 0 };

    /// Of the absent blocks it touched some and left the others alone. A few of the latter
    /// say nothing.
    pub(crate) fn new(touched: usize, left: usize) -> Self {
        if left < Self::SAMPLE {
            return Self::ALL;
        }
        let (touched, left) = (touched as u64, left as u64);
        Self {
            touched,
            of: touched + left,
        }
    }

    const SAMPLE: usize = 8;

    fn of(self, bytes: u64) -> u64 {
        bytes * self.touched / self.of
    }
}

impl Usefulness {
    /// These bytes were there, or came meanwhile if `late`, for a launch that needed such a
    /// share of what it was taken to use.
    pub(crate) fn came_to(&mut self, bytes: u64, needed: Share, late: bool) {
        if needed == Share::UNKNOWN {
            self.taken_back(bytes);
            return;
        }
        let helped = needed.of(bytes);
        if late {
            self.late(helped);
        } else {
            self.useful(helped);
        }
        self.wasted(bytes - helped);
    }

    pub(crate) fn issued(&mut self, bytes: u64) {
        self.issued_bytes += bytes;
    }

    /// Issued, and refused by the driver, or of no launch that would show its use: nothing is
    /// learned from it.
    pub(crate) fn taken_back(&mut self, bytes: u64) {
        self.issued_bytes = self.issued_bytes.saturating_sub(bytes);
        self.taken_back_bytes += bytes;
    }

    /// All that was ever asked for; never less than before.
    pub(crate) fn asked_bytes(&self) -> u64 {
        self.issued_bytes + self.taken_back_bytes
    }

    pub(crate) fn useful(&mut self, bytes: u64) {
        self.useful_bytes += bytes;
    }

    pub(crate) fn late(&mut self, bytes: u64) {
        self.late_bytes += bytes;
    }

    pub(crate) fn wasted(&mut self, bytes: u64) {
        self.wasted_bytes += bytes;
    }

    /// What was taken to be useful was wasted.
    pub(crate) fn mistaken(&mut self, bytes: u64) {
        self.useful_bytes = self.useful_bytes.saturating_sub(bytes);
        self.wasted(bytes);
    }

    /// What moved before it was needed, or at least before a fault would have moved it.
    pub(crate) fn helpful_bytes(&self) -> u64 {
        self.useful_bytes + self.late_bytes
    }

    /// Of what was issued, that of which nothing is known yet.
    pub(crate) fn undecided_bytes(&self) -> u64 {
        self.issued_bytes
            .saturating_sub(self.helpful_bytes() + self.wasted_bytes)
    }

    /// What came since `before`.
    pub(crate) fn since(&self, before: &Usefulness) -> Usefulness {
        Usefulness {
            issued_bytes: self.issued_bytes.saturating_sub(before.issued_bytes),
            useful_bytes: self.useful_bytes.saturating_sub(before.useful_bytes),
            late_bytes: self.late_bytes - before.late_bytes,
            wasted_bytes: self.wasted_bytes - before.wasted_bytes,
            taken_back_bytes: self.taken_back_bytes - before.taken_back_bytes,
        }
    }
}
