//! Functions by name: their numbers are the same in every run of a program.
//!
//! The program numbers functions as it meets them, which may differ from run to run. Here
//! they get the engine's own numbers: those that a profile has, and further ones in order.

use crate::FunctionId;
use crate::hash::{Map, mix};

/// The functions of one session.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    limit: usize,
    /// Hashes of names, by the engine's number.
    names: Vec<u64>,
    by_name: Map<u64, u32>,
    /// The engine's numbers, by the program's.
    numbers: Map<u32, u32>,
    /// How many functions of this session have each name.
    same: Map<u64, u32>,
}

/// Numbers of functions that have no name, or came when the table was full, begin here.
const UNNAMED: u32 = 1 << 31;

impl Functions {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// A function has this name. Of several with one name, the order tells them apart.
    pub(crate) fn named(&mut self, function: FunctionId, name: &str) {
        if self.numbers.len() >= self.limit || self.numbers.contains_key(&function.0) {
            return;
        }
        let hash = name
            .bytes()
            .fold(mix(3, name.len() as u64), |h, b| mix(h, b.into()));
        let same = self.same.entry(hash).or_default();
        let hash = mix(hash, u64::from(*same));
        *same += 1;
        let next = self.names.len() as u32;
        let number = *self.by_name.entry(hash).or_insert(next);
        if number == next {
            self.names.push(hash);
        }
        self.numbers.insert(function.0, number);
    }

    /// The engine's number of a function.
    pub(crate) fn number(&self, function: FunctionId) -> FunctionId {
        let unnamed = UNNAMED | function.0;
        FunctionId(self.numbers.get(&function.0).copied().unwrap_or(unnamed))
    }

    /// Hashes of names, by number.
    pub(crate) fn names(&self) -> &[u64] {
        &self.names
    }

    /// Begins with these.
    pub(crate) fn restore(&mut self, names: &[u64]) {
        for &name in names.iter().take(self.limit) {
            let next = self.names.len() as u32;
            if *self.by_name.entry(name).or_insert(next) == next {
                self.names.push(name);
            }
        }
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let maps = self.by_name.capacity() + self.numbers.capacity() + self.same.capacity();
        (self.names.capacity() * 8 + maps * 17) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_its_number_whatever_the_program_calls_it() {
        let mut first = Functions::new(10);
        for (number, name) in ["a", "b", "a"].into_iter().enumerate() {
            first.named(FunctionId(number as u32 + 5), name);
        }
        let numbers = [5, 6, 7].map(|n| first.number(FunctionId(n)).0);
        assert_eq!(numbers, [0, 1, 2], "two functions of one name are two");
        let mut second = Functions::new(10);
        second.restore(first.names());
        for (number, name) in ["b", "c", "a"].into_iter().enumerate() {
            second.named(FunctionId(number as u32), name);
        }
        let numbers = [0, 1, 2].map(|n| second.number(FunctionId(n)).0);
        assert_eq!(numbers, [1, 3, 0]);
    }

    #[test]
    fn a_function_without_a_name_keeps_its_own_number_apart() {
        let mut functions = Functions::new(1);
        functions.named(FunctionId(4), "a");
        functions.named(FunctionId(0), "b");
        assert_eq!(functions.number(FunctionId(4)).0, 0);
        assert_eq!(functions.number(FunctionId(0)).0, UNNAMED);
        assert_eq!(functions.names().len(), 1);
    }
}
