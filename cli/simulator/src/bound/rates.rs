//! How long the link takes at the least.

use crate::machine::Machine;
use crate::units::{LEAF_BYTES, Rate};

/// The link's rates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub inward: Rate,
    pub outward: Rate,
    pub both: Option<Rate>,
    /// The rate of the device's own accesses to the host's memory over that of copies, percent.
    /// Under a joint cap 100: there they leave the rest to the other direction.
    pub access_percent: u32,
}

impl Rates {
    pub fn of(machine: &Machine) -> Self {
        Self {
            inward: machine.link_in,
            outward: machine.link_out,
            both: machine.link_total,
            access_percent: match machine.link_total {
                Some(_) => 100,
                None => machine.access_percent.clamp(1, 100),
            },
        }
    }

    /// Nanoseconds for a leaf: inward, outward, joint (0 where there is no cap).
    #[cfg(any(feature = "lp", test))]
    pub fn leaf(&self) -> [f64; 3] {
        let nanos = |rate: Rate| LEAF_BYTES as f64 * 1e9 / rate.0.max(1) as f64;
        let both = self.both.map_or(0.0, nanos);
        [nanos(self.inward), nanos(self.outward), both]
    }

    /// Least time to move so many leaves in, out and in both together, nanoseconds, rounded down.
    pub fn least(&self, [inward, outward, both]: [u64; 3]) -> u64 {
        let both = self.both.map_or(0, |rate| time(rate, both));
        time(self.inward, inward)
            .max(time(self.outward, outward))
            .max(both)
    }
}

fn time(rate: Rate, leaves: u64) -> u64 {
    let nanos = u128::from(leaves) * u128::from(LEAF_BYTES) * 1_000_000_000;
    u64::try_from(nanos / u128::from(rate.0.max(1))).unwrap_or(u64::MAX)
}
