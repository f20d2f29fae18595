//! The self-test of the driver's layout: a fault provoked on ourselves, which must arrive as
//! it was made.
//!
//! It needs no GPU: this process opens an address space, maps managed memory and touches
//! it, and the driver serves the host's fault through the same notification as a device's.
//! That proves how faults name their block, their processor, their address and their
//! address space. What only a device makes (fault entries, migrations) is proven event by
//! event, in the programs: an address must lie in its block, a count must not be zero.

use oversub_uvm::UvmError;
use oversub_uvm::session::Space;

use crate::event::{ProbeEvent, What};

/// Bytes of a page; the driver tells faults by page.
const PAGE: u64 = 4096;
/// Two blocks; the fault is in the second one.
const TRIAL_BYTES: usize = 4 << 20;
/// Somewhere in the second block, not at the start of anything.
const TRIAL_OFFSET: usize = (2 << 20) + 37 * 4096 + 8;

/// A fault that this process made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Provoked {
    /// The byte that was touched.
    pub address: u64,
    /// The address spaces that there are, as the kernel lists them; `None`: not known.
    pub spaces: Option<Vec<u64>>,
}

/// Makes one fault of the host on managed memory of this process, and says which. What is
/// to be listed of address spaces is asked for by `list` while ours exists.
///
/// # Errors
/// The driver cannot be used by this process, so nothing can be tested.
pub fn provoke(list: impl FnOnce() -> Option<Vec<u64>>) -> Result<Provoked, UvmError> {
    let space = Space::open()?;
    let memory = space.map(TRIAL_BYTES)?;
    let spaces = list();
    memory.touch(TRIAL_OFFSET, 1);
    Ok(Provoked {
        address: memory.address() + TRIAL_OFFSET as u64,
        spaces,
    })
}

/// Whether the fault arrived as it was made, among the events that came meanwhile.
///
/// # Errors
/// It did not; the text says what differs.
pub fn compare(provoked: &Provoked, events: &[ProbeEvent], implausible: u64) -> Result<(), String> {
    if implausible > 0 {
        return Err(format!(
            "{implausible} structures of the driver had impossible contents"
        ));
    }
    let page = provoked.address / PAGE;
    let hit = |event: &&ProbeEvent| {
        matches!(event.what, What::Fault { address, by_host: true, faults: 1, .. }
            if address / PAGE == page)
    };
    let Some(event) = events.iter().find(hit) else {
        return Err(format!(
            "a fault made at {:#x} did not arrive ({} other events did)",
            provoked.address,
            events.len()
        ));
    };
    match &provoked.spaces {
        Some(spaces) if !spaces.contains(&event.space) => Err(format!(
            "a fault made on ourselves names the address space {:#x}, which no process has",
            event.space
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Source;

    const ADDRESS: u64 = 0x7f12_3425_5008;

    fn fault(address: u64, by_host: bool, space: u64) -> ProbeEvent {
        ProbeEvent {
            time_ns: 1,
            tgid: Some(1),
            source: Source::Uvm,
            space,
            processor: 0,
            what: What::Fault {
                address,
                faults: 1,
                raw_faults: 1,
                batch: 0,
                by_host,
            },
        }
    }

    fn provoked() -> Provoked {
        Provoked {
            address: ADDRESS,
            spaces: Some(vec![7, 9]),
        }
    }

    #[test]
    fn the_fault_passes_when_page_and_space_are_right() {
        let events = [fault(1 << 30, true, 7), fault(ADDRESS & !4095, true, 9)];
        assert_eq!(compare(&provoked(), &events, 0), Ok(()));
    }

    #[test]
    fn the_test_fails_on_every_single_difference() {
        let good = fault(ADDRESS, true, 9);
        assert_eq!(compare(&provoked(), &[good], 0), Ok(()));
        for (events, implausible) in [
            (vec![], 0),
            (vec![good], 1),
            (vec![fault(ADDRESS + 4096, true, 9)], 0),
            (vec![fault(ADDRESS, false, 9)], 0),
            (vec![fault(ADDRESS, true, 8)], 0),
        ] {
            assert!(compare(&provoked(), &events, implausible).is_err());
        }
    }

    #[test]
    fn where_address_spaces_cannot_be_listed_the_rest_is_compared() {
        let unlisted = Provoked {
            spaces: None,
            ..provoked()
        };
        assert_eq!(compare(&unlisted, &[fault(ADDRESS, true, 8)], 0), Ok(()));
        assert!(compare(&unlisted, &[fault(0, true, 8)], 0).is_err());
    }
}
