//! The work [`Work::Advice`](oversub_vm::plan::Work::Advice): what the calls that the soft CUDA
//! driver makes for `cuMemPrefetchAsync` and `cuMemAdvise` do on the real driver, by where a
//! launch then finds its words: UVM_MIGRATE, preferred location, accessed-by, read duplication.

use std::time::Duration;

use anyhow::Result;
use oversub_uvm::CPU;
use oversub_uvm::session::Session;
use oversub_uvm::softgpu::{Access, SoftGpu, Touch, Touched};
use oversub_vm::plan::Checked;

/// Where managed memory is put: no program or library is mapped there.
const BASE: u64 = 0x7e00_0000_0000;
const BLOCK: u64 = 2 << 20;
/// One word of each page is used.
const PAGE: u64 = 4096;
const WORDS: u64 = BLOCK / PAGE;
const IN_FLIGHT: u32 = 256;
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);

/// Runs it.
pub fn run() -> Result<Checked> {
    let device = SoftGpu::open()?;
    let session = Session::open(device.info()?.uuid, std::process::id())?;
    device.bind(session.channel())?;
    let mut trial = Trial {
        session,
        device,
        found: Checked::default(),
        blocks: 0,
    };
    trial.migrate()?;
    trial.prefer_and_map()?;
    trial.duplicate(true)?;
    trial.duplicate(false)?;
    Ok(trial.found)
}

struct Trial {
    session: Session,
    device: SoftGpu,
    found: Checked,
    blocks: u64,
}

impl Trial {
    /// A block of managed memory, each of whose words the host has written.
    fn block(&mut self) -> Result<u64> {
        let at = BASE + self.blocks * BLOCK;
        self.blocks += 1;
        // SAFETY: nothing else of this process is mapped there.
        unsafe { self.session.map_managed(at, BLOCK)? };
        for index in 0..WORDS {
            // SAFETY: within the mapping, aligned; no launch runs.
            unsafe { ((at + index * PAGE) as *mut u64).write_volatile(index + 1) };
        }
        Ok(at)
    }

    /// A launch that reads every word; `more` is what was added to them.
    fn read(&mut self, what: &str, at: u64, more: u64) -> Result<Touched> {
        let touch = Touch {
            access: Access::Read,
            address: at,
            count: WORDS,
            stride: PAGE,
            value: 0,
            in_flight: IN_FLIGHT,
        };
        let touched = self.device.touch(touch, LAUNCH_LIMIT)?;
        let sum = WORDS * (WORDS + 1) / 2 + more;
        self.found.must(touched.sum == sum, || {
            format!("{what}: the device read {}, {sum} was there", touched.sum)
        });
        Ok(touched)
    }

    /// Every word was found in video memory or in the host's, after faults or without.
    fn must_find(&mut self, what: &str, touched: Touched, in_video: bool, by_faults: bool) {
        let (there, elsewhere) = match in_video {
            true => (touched.device_hits, touched.host_hits),
            false => (touched.host_hits, touched.device_hits),
        };
        let right = there == WORDS && elsewhere == 0 && (touched.faults > 0) == by_faults;
        self.found.must(right, || format!("{what}: {touched:?}"));
    }

    /// What was migrated is there, and does not fault.
    fn migrate(&mut self) -> Result<()> {
        let at = self.block()?;
        let gpu = self.session.gpu();
        for what in ["migrated to the device", "migrated there again"] {
            self.session.migrate(at, BLOCK, gpu)?;
            let touched = self.read(what, at, 0)?;
            self.must_find(what, touched, true, false);
            self.session.migrate(at, BLOCK, CPU)?;
        }
        let what = "migrated to the host";
        let touched = self.read(what, at, 0)?;
        self.must_find(what, touched, true, true);
        self.found
            .count("faults after migration to the host", touched.faults);
        Ok(())
    }

    /// What prefers the host and is mapped for the device is read there, over the link; what
    /// no longer does comes to the device by faults.
    fn prefer_and_map(&mut self) -> Result<()> {
        let at = self.block()?;
        self.session.prefer(at, BLOCK, Some(CPU))?;
        self.session.access_by_gpu(at, BLOCK, true)?;
        let what = "prefers the host, accessed by the device";
        let touched = self.read(what, at, 0)?;
        self.must_find(what, touched, false, false);
        self.found
            .count("words read on the host", touched.host_hits);
        // Without the mapping that is kept, a fault makes one, and leaves it on the host.
        self.session.access_by_gpu(at, BLOCK, false)?;
        self.session.prefer(at, BLOCK, None)?;
        self.session.migrate(at, BLOCK, self.session.gpu())?;
        self.session.migrate(at, BLOCK, CPU)?;
        let what = "prefers nothing any more";
        let touched = self.read(what, at, 0)?;
        self.must_find(what, touched, true, true);
        // What prefers the host and is not mapped: the fault makes the mapping alone.
        let at = self.block()?;
        self.session.prefer(at, BLOCK, Some(CPU))?;
        let what = "prefers the host";
        let touched = self.read(what, at, 0)?;
        self.must_find(what, touched, false, true);
        Ok(())
    }

    /// With read duplication the host's reads leave the device its copy; a write of the host
    /// is seen by both. Without, the host's reads take the block back.
    fn duplicate(&mut self, yes: bool) -> Result<()> {
        let at = self.block()?;
        let what = if yes {
            "read duplication"
        } else {
            "no duplication"
        };
        self.session.duplicate_reads(at, BLOCK, yes)?;
        let touched = self.read(what, at, 0)?;
        self.must_find(what, touched, true, true);
        let mut sum = 0;
        for index in 0..WORDS {
            // SAFETY: within the mapping, aligned; no launch runs.
            sum += unsafe { ((at + index * PAGE) as *const u64).read_volatile() };
        }
        self.found.must(sum == WORDS * (WORDS + 1) / 2, || {
            format!("{what}: the host read {sum}")
        });
        let touched = self.read(what, at, 0)?;
        self.must_find(what, touched, true, !yes);
        // SAFETY: as above.
        unsafe { (at as *mut u64).write_volatile(1 + 1000) };
        let touched = self.read(what, at, 1000)?;
        self.must_find(what, touched, true, true);
        Ok(())
    }
}
