//! nvidia-uvm as a source of events: the loaded programs, their ring, the trial of their
//! layout, and the address spaces that are older than they.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};

use crate::event::ProbeEvent;
use crate::load::{ProbeReport, explain};
use crate::plan::ProbePlan;
use crate::selftest;
use crate::spaces::Spaces;
use crate::uvm::{self, Trust, Uvm};

/// Least time between two searches for the processes of unknown address spaces; doubled
/// with each search that finds nothing new, up to the greatest.
const SEARCH_INTERVAL: Duration = Duration::from_millis(200);
/// See [`SEARCH_INTERVAL`].
const LONGEST_SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// What a ring buffer's callback leaves for the reader.
#[derive(Default)]
pub(crate) struct Inbox {
    pub events: Vec<ProbeEvent>,
    pub undecodable: u64,
}

/// The inbox of one ring; its callback and its reader are never there at once.
#[derive(Clone, Default)]
pub(crate) struct SharedInbox(Arc<Mutex<Inbox>>);

impl SharedInbox {
    pub fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader of a ring, whose records come here.
    pub fn ring(&self, map: &dyn MapCore) -> Result<RingBuffer<'static>, libbpf_rs::Error> {
        let inbox = self.clone();
        let callback = move |record: &[u8]| {
            let mut inbox = inbox.lock();
            match ProbeEvent::decode(record) {
                Ok(event) => inbox.events.push(event),
                Err(_) => inbox.undecodable += 1,
            }
            // Anything else would end the reading.
            0
        };
        let mut builder = RingBufferBuilder::new();
        builder.add(map, callback)?;
        builder.build()
    }
}

/// The driver's probes at work.
pub(crate) struct UvmSource {
    pub uvm: Uvm,
    pub ring: RingBuffer<'static>,
    pub inbox: SharedInbox,
    spaces: Result<Spaces, String>,
    searched: Option<Instant>,
    search_interval: Duration,
}

impl UvmSource {
    /// Loads and attaches what was planned, tries the layout on ourselves, and learns whose
    /// the existing address spaces are.
    ///
    /// # Errors
    /// Nothing of it works; the reports say why.
    pub fn start(plan: &ProbePlan) -> Result<UvmSource, Vec<ProbeReport>> {
        let uvm = Uvm::start(plan)?;
        let inbox = SharedInbox::default();
        let ring = match inbox.ring(&uvm.skeleton.maps.ovs_ring) {
            Ok(ring) => ring,
            Err(error) => {
                let reason = explain("opening the ring of the uvm programs", &error);
                return Err(uvm::failed(uvm.reports(), &reason));
            }
        };
        let spaces = Spaces::load();
        if let Err(reason) = &spaces {
            tracing::debug!(reason, "address spaces older than the probes stay unknown");
        }
        let mut source = UvmSource {
            uvm,
            ring,
            inbox,
            spaces,
            searched: None,
            search_interval: SEARCH_INTERVAL,
        };
        source.try_layout();
        source.search_spaces();
        Ok(source)
    }

    /// The self-test: decides how far the layout is believed.
    fn try_layout(&mut self) {
        if matches!(self.uvm.trust, Trust::Scalar(_)) {
            return;
        }
        let before = self.uvm.implausible();
        let provoked = selftest::provoke(|| {
            let listed = self.spaces.as_ref().ok()?.list().ok()?;
            Some(listed.into_iter().map(|open| open.space).collect())
        });
        let provoked = match provoked {
            Ok(provoked) => provoked,
            // A guess is believed only when it has been proven.
            Err(error) if self.uvm.guessed() => {
                self.uvm.fall_back(&format!(
                    "the driver is newer than every checked one, and the self-test cannot run: \
                     {error}"
                ));
                return;
            }
            Err(error) => {
                self.uvm.trust = Trust::Unverified(error.to_string());
                return;
            }
        };
        // The programs ran in this thread, so their records are in the ring.
        let _ = self.ring.consume();
        let implausible = self.uvm.implausible().saturating_sub(before);
        let verdict = selftest::compare(&provoked, &self.inbox.lock().events, implausible);
        match verdict {
            Ok(()) => self.uvm.trust = Trust::Verified,
            Err(reason) => self.uvm.fall_back(&format!("self-test: {reason}")),
        }
    }

    /// Tells the programs whose the address spaces are that exist. At most now and then,
    /// since it looks at every open file of the host.
    pub fn search_spaces(&mut self) {
        let now = Instant::now();
        let early = |last: Instant| now.duration_since(last) < self.search_interval;
        if self.searched.is_some_and(early) {
            return;
        }
        self.searched = Some(now);
        let Ok(spaces) = &self.spaces else { return };
        let mut learned = false;
        match spaces.list() {
            Ok(found) => {
                for open in found {
                    learned |= self.uvm.learn_space(open.space, open.tgid);
                }
            }
            Err(reason) => tracing::debug!(reason, "cannot list address spaces"),
        }
        self.search_interval = if learned {
            SEARCH_INTERVAL
        } else {
            (self.search_interval * 2).min(LONGEST_SEARCH_INTERVAL)
        };
    }

    /// Falls back to scalar mode when some structure had impossible contents.
    pub fn watch_plausibility(&mut self) {
        let implausible = self.uvm.implausible();
        if implausible > 0 && !matches!(self.uvm.trust, Trust::Scalar(_)) {
            let checked = self.uvm.checked();
            self.uvm.fall_back(&format!(
                "{implausible} of {checked} structures of the driver had impossible contents"
            ));
        }
    }
}
