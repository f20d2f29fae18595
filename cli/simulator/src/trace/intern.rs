//! Slices stored once: equal slices share one [`Span`]. Owns the storage while a program is
//! built; knows nothing of what the items mean.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::program::Span;

/// Grows one array in which every distinct slice lies once.
pub(super) struct Interner<T> {
    items: Vec<T>,
    /// Spans by hash; a span whose hash is taken lies at the next free one after it.
    spans: HashMap<u64, Span>,
}

impl<T: Copy + Eq + Hash> Interner<T> {
    pub(super) fn new() -> Self {
        Self {
            items: Vec::new(),
            spans: HashMap::new(),
        }
    }

    /// Where an equal slice lies, stored now if it never was; none when that would take
    /// more than `limit` items in all. A limit of at most `u32::MAX`.
    pub(super) fn intern(&mut self, slice: &[T], limit: usize) -> Option<Span> {
        if slice.is_empty() {
            return Some(Span::default());
        }
        let mut hasher = DefaultHasher::new();
        slice.hash(&mut hasher);
        let mut key = hasher.finish();
        while let Some(&span) = self.spans.get(&key) {
            if &self.items[span.range()] == slice {
                return Some(span);
            }
            key = key.wrapping_add(1);
        }
        let start = self.items.len();
        let end = start.checked_add(slice.len())?;
        if end > limit {
            return None;
        }
        let span = Span {
            start: u32::try_from(start).ok()?,
            end: u32::try_from(end).ok()?,
        };
        self.items.extend_from_slice(slice);
        self.spans.insert(key, span);
        Some(span)
    }

    /// The array, without spare room.
    pub(super) fn finish(mut self) -> Vec<T> {
        self.items.shrink_to_fit();
        self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_slices_are_stored_once_and_others_apart() {
        let mut interner = Interner::new();
        let first = interner.intern(&[1, 2, 3], 100).unwrap();
        let other = interner.intern(&[1, 2], 100).unwrap();
        let again = interner.intern(&[1, 2, 3], 100).unwrap();
        assert_eq!(first, again);
        assert_ne!(first, other);
        assert_eq!(interner.finish(), [1, 2, 3, 1, 2]);
    }

    #[test]
    fn what_does_not_fit_the_limit_is_refused_and_what_is_there_still_found() {
        let mut interner = Interner::new();
        let first = interner.intern(&[7, 8], 3).unwrap();
        assert!(interner.intern(&[8, 9], 3).is_none());
        assert_eq!(interner.intern(&[7, 8], 3), Some(first));
    }
}
