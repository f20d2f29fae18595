//! The links and the sizes of device memory that a plan looks at.

use clap::ValueEnum;
use oversub_sim::units::BLOCK_BYTES;

const GIB: u64 = 1 << 30;

/// Taken from a card's memory for the CUDA context and the driver's own: a round figure,
/// not a measured one.
pub const CONTEXT_BYTES: u64 = GIB / 2;

/// Cards as they are sold, by their memory.
const CARDS: &[(&str, u64)] = &[
    ("8 GB", 8 * GIB),
    ("12 GB", 12 * GIB),
    ("16 GB", 16 * GIB),
    ("24 GB", 24 * GIB),
    ("32 GB", 32 * GIB),
    ("40 GB", 40 * GIB),
    ("48 GB", 48 * GIB),
    ("80 GB", 80 * GIB),
    ("96 GB", 96 * GIB),
    ("141 GB", 141_000_000_000),
    ("192 GB", 192_000_000_000),
];

/// Parts of the footprint, in percent.
const PERCENT: [u64; 9] = [100, 90, 80, 70, 60, 50, 40, 33, 25];

/// A link between host and device, each way; what pinned copies reach, where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Link {
    /// PCIe 3.0 x16: 12 GB/s each way (pinned copies of a V100, DeepUM section 6.1)
    #[value(name = "pcie3")]
    Pcie3,
    /// PCIe 4.0 x16: 25 GB/s each way (pinned copies of an A100)
    #[value(name = "pcie4")]
    Pcie4,
    /// PCIe 5.0 x16: 55 GB/s each way (pinned copies of an H100)
    #[value(name = "pcie5")]
    Pcie5,
    /// NVLink-C2C as in GH200: 450 GB/s each way (NVIDIA's data sheet)
    #[value(name = "nvlink-c2c")]
    NvlinkC2c,
}

impl Link {
    /// All of them, slowest first.
    pub const ALL: [Link; 4] = [Self::Pcie3, Self::Pcie4, Self::Pcie5, Self::NvlinkC2c];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcie3 => "pcie3",
            Self::Pcie4 => "pcie4",
            Self::Pcie5 => "pcie5",
            Self::NvlinkC2c => "nvlink-c2c",
        }
    }

    /// Bytes per second, each way.
    pub fn rate(self) -> u64 {
        match self {
            Self::Pcie3 => 12_000_000_000,
            Self::Pcie4 => 25_000_000_000,
            Self::Pcie5 => 55_000_000_000,
            Self::NvlinkC2c => 450_000_000_000,
        }
    }
}

/// One size of device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizePoint {
    /// What the program has of it.
    pub memory_bytes: u64,
    /// The card, where it is one.
    pub card: Option<&'static str>,
}

/// Parts of the footprint and the cards among them, and the next larger card; largest
/// first. Whole blocks.
pub fn sizes(footprint_bytes: u64) -> Vec<SizePoint> {
    let whole = |bytes: u64| bytes / BLOCK_BYTES * BLOCK_BYTES;
    let part =
        |percent: u64| whole((u128::from(footprint_bytes) * u128::from(percent) / 100) as u64);
    let mut sizes: Vec<SizePoint> = PERCENT
        .into_iter()
        .map(|percent| SizePoint {
            memory_bytes: part(percent).max(BLOCK_BYTES),
            card: None,
        })
        .collect();
    let smallest = part(25);
    let mut larger = false;
    for (name, bytes) in CARDS {
        let memory_bytes = whole(bytes - CONTEXT_BYTES);
        if memory_bytes < smallest || larger {
            continue;
        }
        larger = memory_bytes >= footprint_bytes;
        sizes.push(SizePoint {
            memory_bytes,
            card: Some(*name),
        });
    }
    sizes.sort_by_key(|size| (std::cmp::Reverse(size.memory_bytes), size.card.is_none()));
    sizes.dedup_by_key(|size| size.memory_bytes);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_from_the_first_card_that_fits_all_down_to_a_quarter() {
        let sizes = sizes(30 * GIB);
        let cards: Vec<_> = sizes.iter().filter_map(|size| size.card).collect();
        assert_eq!(cards, ["32 GB", "24 GB", "16 GB", "12 GB", "8 GB"]);
        assert_eq!(sizes[0].card, Some("32 GB"));
        let least = sizes.last().unwrap().memory_bytes;
        assert!((7 * GIB..8 * GIB).contains(&least), "{least}");
        assert!(
            sizes
                .iter()
                .all(|size| size.memory_bytes % BLOCK_BYTES == 0)
        );
        assert!(sizes.is_sorted_by(|a, b| a.memory_bytes > b.memory_bytes));
    }

    #[test]
    fn a_small_program_fits_the_smallest_card_and_still_has_a_curve() {
        let sizes = sizes(64 << 20);
        let cards: Vec<_> = sizes.iter().filter_map(|size| size.card).collect();
        assert_eq!(cards, ["8 GB"]);
        assert_eq!(sizes.len(), 1 + PERCENT.len());
    }

    #[test]
    fn every_link_is_found_by_its_name() {
        for link in Link::ALL {
            assert_eq!(Link::from_str(link.name(), false), Ok(link));
        }
    }
}
