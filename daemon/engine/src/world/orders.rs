//! Commands under way: their numbers, what they hold, how long they took.
//!
//! Owns the in-flight bytes of each queue and the measured rate of the link.

use std::collections::VecDeque;

use super::block::Extent;
use crate::command::{Command, Operation, Queue};
use crate::units::{BLOCK_BYTES, Micros, Range};

/// Weight of the past in the measured rate.
const SMOOTHING: f64 = 0.8;

/// A command that was issued and is not known to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub id: u32,
    pub operation: Operation,
    pub blocks: Extent,
    /// A discard of blocks that lay on the host.
    pub from_host: bool,
    issued: Micros,
}

#[derive(Debug)]
struct Lane {
    last_id: u32,
    orders: VecDeque<Order>,
    bytes: u64,
    rate: f64,
    last_done: Micros,
    done_since: Option<Micros>,
    done_bytes: u64,
}

/// The queues of the executor.
#[derive(Debug)]
pub(crate) struct Orders {
    lanes: [Lane; Queue::ALL.len()],
}

impl Orders {
    pub(crate) fn new(link_bytes_per_us: f64) -> Self {
        Self {
            lanes: [(); Queue::ALL.len()].map(|()| Lane {
                last_id: 0,
                orders: VecDeque::new(),
                bytes: 0,
                rate: link_bytes_per_us,
                last_done: Micros(0),
                done_since: None,
                done_bytes: 0,
            }),
        }
    }

    fn lane(&self, queue: Queue) -> &Lane {
        &self.lanes[queue as usize]
    }

    /// Bytes under way in a queue.
    pub(crate) fn bytes(&self, queue: Queue) -> u64 {
        self.lane(queue).bytes
    }

    /// Measured rate of a direction, bytes per microsecond.
    pub(crate) fn rate(&self, queue: Queue) -> f64 {
        self.lane(queue).rate
    }

    /// When the oldest command was issued.
    pub(crate) fn oldest(&self) -> Option<Micros> {
        self.lanes
            .iter()
            .filter_map(|lane| lane.orders.front())
            .map(|order| order.issued)
            .min()
    }

    /// Gives out a command, joined to the last one of `commands` where the block follows what that
    /// is for, and the two together stay within `merge_bytes`. So it is where the block comes
    /// before it, but for fetches, whose order is that of need: what leaves a sweep is what was
    /// passed last, block for block backwards.
    pub(crate) fn issue(
        &mut self,
        now: Micros,
        (queue, operation): (Queue, Operation),
        (block, from_host): (u64, bool),
        merge_bytes: u64,
        commands: &mut Vec<Command>,
    ) {
        let lane = &mut self.lanes[queue as usize];
        lane.bytes += BLOCK_BYTES;
        if let Some(last) = commands.iter_mut().rfind(|command| command.queue == queue)
            && let Some(order) = lane.orders.back_mut()
            && last.id == order.id
            && (last.operation, order.from_host) == (operation, from_host)
            && last.range.bytes < merge_bytes
        {
            let before = queue != Queue::In && order.blocks.first == block + 1;
            if before {
                order.blocks.first = block;
                last.range.address -= BLOCK_BYTES;
            }
            if before || order.blocks.end() == block {
                order.blocks.count += 1;
                last.range.bytes += BLOCK_BYTES;
                return;
            }
        }
        lane.last_id = lane.last_id.wrapping_add(1);
        let id = lane.last_id;
        let blocks = Extent {
            first: block,
            count: 1,
        };
        lane.orders.push_back(Order {
            id,
            operation,
            blocks,
            from_host,
            issued: now,
        });
        let range = Range {
            address: block * BLOCK_BYTES,
            bytes: BLOCK_BYTES,
        };
        commands.push(Command {
            queue,
            id,
            operation,
            range,
        });
    }

    /// The next command of `queue` that is done once `id` is.
    pub(crate) fn complete(&mut self, now: Micros, queue: Queue, id: u32) -> Option<Order> {
        let lane = &mut self.lanes[queue as usize];
        let front = lane.orders.front()?;
        if (id.wrapping_sub(front.id) as i32) < 0 || (lane.last_id.wrapping_sub(id) as i32) < 0 {
            return None;
        }
        let order = lane.orders.pop_front()?;
        let bytes = order.blocks.count * BLOCK_BYTES;
        lane.bytes = lane.bytes.saturating_sub(bytes);
        // Several may be reported done at one time: they share it.
        let began = lane
            .done_since
            .get_or_insert(order.issued.max(lane.last_done));
        lane.done_bytes += bytes;
        if lane
            .orders
            .front()
            .is_none_or(|next| (id.wrapping_sub(next.id) as i32) < 0)
        {
            let took = now.0.saturating_sub(began.0);
            if took > 0 {
                let rate = lane.done_bytes as f64 / took as f64;
                lane.rate = SMOOTHING * lane.rate + (1.0 - SMOOTHING) * rate;
            }
            (lane.last_done, lane.done_since, lane.done_bytes) = (now, None, 0);
        }
        Some(order)
    }

    /// Takes out a command that had no effect.
    pub(crate) fn refuse(&mut self, queue: Queue, id: u32) -> Option<Order> {
        let lane = &mut self.lanes[queue as usize];
        let index = lane.orders.iter().position(|order| order.id == id)?;
        let order = lane.orders.remove(index)?;
        lane.bytes = lane.bytes.saturating_sub(order.blocks.count * BLOCK_BYTES);
        Some(order)
    }

    /// Estimated size of the tables in bytes.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.lanes
            .iter()
            .map(|lane| (lane.orders.len() * size_of::<Order>()) as u64)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of the commands, first block and count, that such a queue of blocks becomes.
    fn issued(queue: Queue, operation: Operation, blocks: &[u64]) -> Vec<(u64, u64)> {
        let mut orders = Orders::new(1.0);
        let mut commands = Vec::new();
        for &block in blocks {
            let what = (queue, operation);
            let most = 3 * BLOCK_BYTES;
            orders.issue(Micros(0), what, (block, false), most, &mut commands);
        }
        let under_way = blocks.len() as u64 * BLOCK_BYTES;
        assert_eq!(orders.bytes(queue), under_way);
        for command in &commands {
            let order = orders.complete(Micros(1), queue, command.id).unwrap();
            assert_eq!(order.blocks.first * BLOCK_BYTES, command.range.address);
            assert_eq!(order.blocks.count * BLOCK_BYTES, command.range.bytes);
        }
        let range = |c: &Command| (c.range.address / BLOCK_BYTES, c.range.bytes / BLOCK_BYTES);
        commands.iter().map(range).collect()
    }

    #[test]
    fn neighbours_leave_in_one_call_forwards_and_backwards() {
        let evicted = |blocks| issued(Queue::Out, Operation::Evict, blocks);
        assert_eq!(evicted(&[5, 6, 7]), [(5, 3)]);
        assert_eq!(evicted(&[7, 6, 5]), [(5, 3)]);
        assert_eq!(evicted(&[6, 7, 5]), [(5, 3)]);
        assert_eq!(evicted(&[7, 5, 6]), [(7, 1), (5, 2)]);
        assert_eq!(
            evicted(&[9, 8, 7, 6, 5]),
            [(7, 3), (5, 2)],
            "so many at most"
        );
    }

    #[test]
    fn what_is_needed_first_comes_first() {
        let fetched = |blocks| issued(Queue::In, Operation::Prefetch, blocks);
        assert_eq!(fetched(&[5, 6, 7]), [(5, 3)]);
        assert_eq!(fetched(&[7, 6, 5]), [(7, 1), (6, 1), (5, 1)]);
    }
}
