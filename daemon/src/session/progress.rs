//! How far the device is: from the 32-bit words that it writes to 64-bit sequence numbers.
//!
//! A client can write anything into those words, so each is a hint: a value that would lie
//! beyond the last record seen, or behind what is already known, is ignored.

use std::sync::atomic::Ordering;

use oversub_protocol::command::queue;
use oversub_protocol::layout::{DevicePage, STREAM_SLOTS};

/// One past a 32-bit word.
const WRAP: u64 = 1 << 32;

/// The device's words, as they were at one moment.
#[derive(Clone, Debug)]
pub struct DeviceWords {
    /// By stream: [`DevicePage::progress`].
    pub progress: [u32; STREAM_SLOTS],
    /// By queue of the executor: [`DevicePage::done`].
    pub done: [u32; queue::COUNT],
}

impl DeviceWords {
    /// As they are now.
    pub fn read(page: &DevicePage) -> Self {
        Self {
            progress: page
                .progress
                .each_ref()
                .map(|word| word.load(Ordering::Acquire)),
            done: page
                .done
                .each_ref()
                .map(|word| word.load(Ordering::Acquire)),
        }
    }
}

/// What is known of the device's progress in one session.
#[derive(Debug)]
pub struct Progress {
    /// Highest sequence number in any record.
    last: u64,
    /// By stream: the last launch put into it.
    launched: [u64; STREAM_SLOTS],
    /// By stream: everything up to here was executed.
    passed: [u64; STREAM_SLOTS],
    /// Streams in which something was launched.
    used: Vec<u8>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            last: 0,
            launched: [0; STREAM_SLOTS],
            passed: [0; STREAM_SLOTS],
            used: Vec::new(),
        }
    }
}

impl Progress {
    /// The slot that a record's stream stands for.
    pub fn slot(stream: u8) -> u8 {
        stream.min(STREAM_SLOTS as u8 - 1)
    }

    /// Something with this number was put into `stream`. `false`: the number is none that
    /// could follow (zero, or a jump that the 32-bit words could not carry).
    pub fn launched(&mut self, stream: u8, seq: u64) -> bool {
        if seq == 0 || seq > self.last.saturating_add(WRAP / 2) {
            return false;
        }
        let slot = usize::from(Self::slot(stream));
        if self.launched[slot] == 0 {
            self.used.push(slot as u8);
        }
        self.launched[slot] = self.launched[slot].max(seq);
        self.last = self.last.max(seq);
        true
    }

    /// The device's word of `stream` reads `word`: the number it has newly passed, if any.
    pub fn word(&mut self, stream: u8, word: u32) -> Option<u64> {
        let seq = self.newly_passed(stream, word)?;
        self.passed[usize::from(Self::slot(stream))] = seq;
        Some(seq)
    }

    /// The same, without taking it in.
    pub fn newly_passed(&self, stream: u8, word: u32) -> Option<u64> {
        let passed = self.passed[usize::from(Self::slot(stream))];
        if word == passed as u32 {
            return None;
        }
        let near = (self.last & !(WRAP - 1)) | u64::from(word);
        let seq = if near > self.last {
            near.checked_sub(WRAP)?
        } else {
            near
        };
        (seq > passed).then_some(seq)
    }

    /// The host waited for `stream` when the next number was `before`: the number newly
    /// passed, if any.
    pub fn synchronized(&mut self, stream: u8, before: u64) -> Option<u64> {
        let slot = usize::from(Self::slot(stream));
        let seq = self.launched[slot].min(before.checked_sub(1)?);
        (seq > self.passed[slot]).then(|| {
            self.passed[slot] = seq;
            seq
        })
    }

    /// Streams in which something was launched.
    pub fn used(&self) -> &[u8] {
        &self.used
    }

    /// Something launched has not been executed, as far as is known. The slot that streams
    /// share has no word and does not count.
    pub fn outstanding(&self) -> bool {
        self.used
            .iter()
            .map(|slot| usize::from(*slot))
            .any(|slot| slot + 1 < STREAM_SLOTS && self.launched[slot] > self.passed[slot])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_number_nearest_below_the_last_record() {
        let mut progress = Progress::default();
        assert!(progress.launched(0, 5));
        assert!(progress.outstanding());
        assert_eq!(progress.word(0, 3), Some(3));
        assert_eq!(progress.word(0, 5), Some(5));
        assert!(!progress.outstanding());
    }

    #[test]
    fn a_word_from_before_the_wrap_is_understood() {
        let mut progress = Progress::default();
        for seq in [1 << 31, WRAP - 2, WRAP + 3] {
            assert!(progress.launched(1, seq));
        }
        assert_eq!(progress.word(1, u32::MAX - 1), Some(WRAP - 2));
        assert_eq!(progress.word(1, 3), Some(WRAP + 3));
    }

    #[test]
    fn words_that_go_back_or_beyond_the_last_record_are_ignored() {
        let mut progress = Progress::default();
        assert!(progress.launched(0, 10));
        assert_eq!(progress.word(0, 8), Some(8));
        assert_eq!(progress.word(0, 7), None);
        assert_eq!(progress.word(0, 11), None);
        assert_eq!(progress.word(0, u32::MAX), None);
        assert_eq!(progress.word(0, 8), None);
    }

    #[test]
    fn numbers_that_cannot_follow_are_refused() {
        let mut progress = Progress::default();
        assert!(!progress.launched(0, 0));
        assert!(!progress.launched(0, u64::MAX));
        assert!(!progress.outstanding());
    }

    #[test]
    fn waiting_for_a_stream_means_that_its_launches_are_done() {
        let mut progress = Progress::default();
        assert!(progress.launched(0, 4));
        assert!(progress.launched(0, 9));
        assert_eq!(progress.synchronized(0, 6), Some(5));
        assert_eq!(progress.synchronized(0, 10), Some(9));
        assert_eq!(progress.synchronized(0, 10), None);
        assert_eq!(progress.synchronized(0, 0), None);
    }

    #[test]
    fn a_stream_number_out_of_range_is_the_shared_slot_and_is_not_waited_for() {
        let mut progress = Progress::default();
        assert!(progress.launched(200, 4));
        assert!(!progress.outstanding());
    }
}
