//! What the program puts into its streams: launches and copies, as they are told of.

use std::sync::Arc;

use super::Engine;
use crate::access::{Access, Argument, geometry, shape};
use crate::event::{Copy, Launch};
use crate::hash::mix;
use crate::identity::UNKNOWN;
use crate::units::{Range, TICKS};
use crate::world::block::Set;
use crate::{Seq, StreamId};

/// Most argument words looked at: more than fill the 4 KiB that kernels on lists of tensors
/// take, whose pointers come first.
const WORDS: usize = 520;
/// What a launch without pointers runs, as the history has it: it repeats none but itself.
const NO_CODE: u32 = u32::MAX;

impl Engine {
    pub(super) fn launch(&mut self, launch: &Launch<'_>) {
        let words = &launch.words[..launch.words.len().min(WORDS)];
        let launch = Launch {
            words,
            function: self.functions.number(launch.function),
            ..*launch
        };
        let objects: Vec<_> = words
            .iter()
            .map(|&word| self.world.memory.resolve(word))
            .collect();
        let known = self.identities.len();
        let exec = self.identities.launch(&launch, &objects);
        let novel = self.identities.len() > known || exec == UNKNOWN;
        let world = &self.world;
        let access = if world.without.arguments {
            self.accesses.faulted(exec, &world.memory)
        } else {
            self.accesses.launch(
                (exec, novel),
                &launch,
                &objects,
                &world.memory,
                world.probes,
            )
        };
        let geometry = geometry(&launch);
        let arguments = objects.iter().zip(0..).filter_map(|(object, word)| {
            let address = object.as_ref()?.extent.address;
            Some(Argument {
                function: launch.function.0,
                word,
                shape: shape(geometry, word),
                address,
            })
        });
        let arguments = arguments.collect();
        // Parts that a framework tells of are named by what they are for, wherever they lie.
        let plain = objects.iter().zip(0_u32..).filter_map(|(object, number)| {
            let object = object.as_ref().filter(|object| !object.part)?;
            let word = u64::from(launch.function.0) << 32 | u64::from(number);
            Some(mix(mix(object.name, object.offset), word))
        });
        let plain: Vec<u64> = plain.collect();
        self.enqueue((launch.seq, launch.stream), exec, access, arguments, &plain);
    }

    pub(super) fn copy(&mut self, copy: &Copy) {
        let memory = &self.world.memory;
        let named = |range: Option<Range>| memory.name_at(range?.address);
        let exec = self.identities.copy(copy, named(copy.dst), named(copy.src));
        let ranges: Vec<Range> = [copy.dst, copy.src].into_iter().flatten().collect();
        let access = self
            .accesses
            .access(exec, (&ranges, &[]), (None, true), memory);
        self.enqueue((copy.seq, copy.stream), exec, access, Arc::from([]), &[]);
    }

    /// `plain`: what names the pointers to memory that no framework tells of.
    fn enqueue(
        &mut self,
        (seq, stream): (Seq, StreamId),
        exec: u32,
        access: Access,
        arguments: Arc<[Argument]>,
        plain: &[u64],
    ) {
        self.stats.launches += 1;
        let world = &mut self.world;
        let set: Set = access.set.clone();
        let code = arguments.first().map_or(NO_CODE, |first| first.function);
        let position = world.history.push((exec, code), plain.iter().copied());
        let stale = world.history.stale().min(world.floor().saturating_sub(1));
        let (begin, stale) = (position * TICKS, stale * TICKS + TICKS - 1);
        let lag = world.history.lag();
        let mut slots = std::mem::take(&mut self.slots);
        for extent in access.sweep.as_ref().unwrap_or(&set).iter() {
            slots.clear();
            slots.extend(world.blocks.within(extent.first, extent.end()));
            for &(number, slot) in &slots {
                // A sweep comes to its blocks one after the other.
                let moment = match access.sweep {
                    Some(_) => begin + (number - extent.first) * TICKS / extent.count,
                    None => begin,
                };
                world.blocks.will_use(slot, moment, stale, lag);
            }
        }
        self.slots = slots;
        let idle = world.window.len() == 0;
        world
            .window
            .push((position, exec), (seq, stream), access, arguments);
        if idle {
            self.run_ahead.idled(self.pace.since_us(self.now));
            self.pace.began(self.now);
            self.started();
        }
        self.advance();
    }
}
