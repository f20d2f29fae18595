//! Numbers in bytes: what a profile is written with, and read back from without trust.

/// Why bytes are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// They end too early.
    Short,
    /// A number is larger than what it counts may be.
    Large,
}

/// Writes numbers, small ones in few bytes (LEB128).
#[derive(Debug, Default)]
pub(super) struct Writer(pub Vec<u8>);

impl Writer {
    pub(super) fn fixed(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A list, with its length before it.
    pub(super) fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            each(self, item);
        }
    }
}

/// Reads what [`Writer`] wrote, or anything else, within limits.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub(super) fn fixed(&mut self) -> Result<u64, Wrong> {
        let (head, rest) = self.0.split_first_chunk::<8>().ok_or(Wrong::Short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*head))
    }

    pub(super) fn number(&mut self) -> Result<u64, Wrong> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Wrong::Short)?;
            self.0 = rest;
            let part = u64::from(byte & 0x7F);
            if shift == 63 && part > 1 {
                return Err(Wrong::Large);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Wrong::Large)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> Result<u64, Wrong> {
        let value = self.number()?;
        if value < limit {
            Ok(value)
        } else {
            Err(Wrong::Large)
        }
    }

    pub(super) fn small(&mut self) -> Result<u32, Wrong> {
        u32::try_from(self.number()?).map_err(|_| Wrong::Large)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Wrong> {
        Ok(self.below(2)? == 1)
    }

    /// A list of at most `limit` items. Room is only taken for what the bytes can hold.
    pub(super) fn list<T>(
        &mut self,
        limit: usize,
        mut each: impl FnMut(&mut Self) -> Result<T, Wrong>,
    ) -> Result<Vec<T>, Wrong> {
        let count = self.below(limit as u64 + 1)? as usize;
        if count > self.0.len() {
            return Err(Wrong::Short);
        }
        let mut items = Vec::with_capacity(count.min(self.0.len() / size_of::<T>().max(1) + 1));
        for _ in 0..count {
            items.push(each(self)?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_come_back() {
        let numbers = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, u64::MAX >> bit]);
        let numbers: Vec<u64> = numbers.collect();
        let mut writer = Writer::default();
        writer.list(&numbers, |writer, &number| writer.number(number));
        let mut reader = Reader(&writer.0);
        assert_eq!(reader.list(500, Reader::number), Ok(numbers));
        assert!(reader.0.is_empty());
    }

    #[test]
    fn a_length_that_the_bytes_cannot_hold_takes_no_room() {
        let mut writer = Writer::default();
        writer.number(1 << 40);
        let read = |limit| Reader(&writer.0).list(limit, Reader::number);
        assert_eq!(read(usize::MAX - 1), Err(Wrong::Short));
        assert_eq!(read(1000), Err(Wrong::Large));
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        assert_eq!(Reader(&[0xFF; 10]).number(), Err(Wrong::Large));
        assert_eq!(Reader(&[0xFF; 3]).number(), Err(Wrong::Short));
    }
}
