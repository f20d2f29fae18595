//! Whether launches that come again use the same.

/// Blocks from which it can be told, and so many count half as much when more come.
const EVIDENCE: u32 = 32;
const MEMORY: u32 = 256;
/// Of so many blocks one may say something else.
const STRAYS: u32 = 8;

/// Of blocks that launches used before and that were away when they came again, how many they
/// used, and how many there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Agreement {
    same: u32,
    all: u32,
}

impl Agreement {
    /// So many more were used again, and so many were not.
    pub(crate) fn add(&mut self, same: u64, other: u64) {
        let most = |count: u64| count.min(u64::from(MEMORY)) as u32;
        self.same += most(same);
        self.all += most(same) + most(other);
        while self.all > MEMORY {
            self.same /= 2;
            self.all /= 2;
        }
    }

    /// Whether they use the same, once it can be told.
    pub(crate) fn holds(self) -> Option<bool> {
        let holds = (self.all - self.same) * STRAYS <= self.all;
        (self.all >= EVIDENCE).then_some(holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_blocks_enough_and_nearly_all_of_them_the_same() {
        let after = |seen: &[(u64, u64)]| {
            let mut agreement = Agreement::default();
            seen.iter()
                .for_each(|&(same, other)| agreement.add(same, other));
            agreement.holds()
        };
        assert_eq!(after(&[(31, 0)]), None);
        assert_eq!(after(&[(31, 0), (1, 0)]), Some(true));
        assert_eq!(after(&[(28, 4)]), Some(true));
        assert_eq!(after(&[(28, 5)]), Some(false));
        assert_eq!(after(&[(u64::MAX, u64::MAX)]), Some(false));
    }

    #[test]
    fn what_is_long_past_counts_less() {
        let mut agreement = Agreement::default();
        agreement.add(0, 10_000);
        let passed = (1..).find(|_| {
            agreement.add(32, 0);
            agreement.holds() == Some(true)
        });
        assert!(passed.is_some_and(|launches| launches < 32), "{passed:?}");
    }
}
