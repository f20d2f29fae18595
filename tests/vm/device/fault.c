// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Replayable faults: packets in the buffer that the driver reads, the
 * interrupt that tells it of them, the replay that it answers with, and
 * launches that touch memory from the kernel (SOFTGPU_TOUCH).
 *
 * A replay repeats everything that faulted, as the hardware's does: who waits
 * looks again, and may fault again.
 */
#include "device.h"
#include "hwref/pascal/gp100/dev_fault.h"

#include <linux/delay.h>
#include <linux/sched/signal.h>

/* Fields of the last word, from Volta on as before (clc369.h, clb069.h). */
#define TYPE_SHIFT 0
#define REPLAYABLE (1u << 7)
#define ACCESS_SHIFT 16
#define REPLAYABLE_ENABLED (1u << 30)
#define VALID (1u << 31)
/* NV_PFAULT_MMU_ENG_ID_GRAPHICS of Volta and Turing. */
#define ENGINE_GRAPHICS 64

/* What stands against the access; false with the kind of fault in *type. */
bool fault_check(const struct translation *to, u32 access, u32 *type)
{
	if (access == SOFTGPU_READ || access == SOFTGPU_PREFETCH)
		return true;
	if (to->read_only) {
		*type = NV_PFAULT_FAULT_TYPE_RO_VIOLATION;
		return false;
	}
	if (access == SOFTGPU_ATOMIC && to->no_atomics) {
		*type = NV_PFAULT_FAULT_TYPE_ATOMIC_VIOLATION;
		return false;
	}
	return true;
}

/* Tells the driver, from a hard interrupt as the device would. */
void fault_raise(void)
{
	irq_work_queue(&gpu.interrupt);
}

/* Writes a packet; the lock is held. False: the buffer is full. */
bool fault_push(struct user_channel *channel, u64 address, u32 access, u32 type)
{
	u32 put = gpu.registers[REG_PUT], last;
	u32 *entry = gpu.fault_buffer + put * (FAULT_ENTRY_BYTES / 4);
	u64 now = ktime_get_ns();

	if (!gpu.faults_on || (put + 1) % FAULT_ENTRIES == gpu.registers[REG_GET])
		return false;
	entry[0] = channel->instance & ~0xfffu;	/* in video memory */
	entry[1] = channel->instance >> 32;
	entry[2] = address & ~0xfffull;
	entry[3] = address >> 32;
	entry[4] = now;
	entry[5] = now >> 32;
	entry[6] = gpu.model == MODEL_PASCAL ? 0 : ENGINE_GRAPHICS;
	last = VALID | type << TYPE_SHIFT | access << ACCESS_SHIFT;
	if (gpu.model != MODEL_PASCAL)
		last |= REPLAYABLE | REPLAYABLE_ENABLED;
	smp_wmb();
	WRITE_ONCE(entry[7], last);
	smp_wmb();
	WRITE_ONCE(gpu.registers[REG_PUT], (put + 1) % FAULT_ENTRIES);
	gpu.done.fault_packets++;
	return true;
}

void fault_replay(bool cancel)
{
	gpu.done.replays++;
	if (cancel) {
		gpu.done.cancels++;
		atomic_inc(&gpu.cancels);
	}
	atomic_inc(&gpu.replays);
	wake_up_all(&gpu.replayed);
}

struct user_channel *user_channel_find(u32 handle)
{
	struct user_channel *channel;

	list_for_each_entry(channel, &gpu.user_channels, node)
		if (channel->handle == handle)
			return channel;
	return NULL;
}

static void access_word(const struct translation *to, struct softgpu_touch *touch, u64 index,
			u64 *sum)
{
	u64 *word = (u64 *)((uintptr_t)to->cpu & ~7ul);

	if (touch->access == SOFTGPU_WRITE || touch->access == SOFTGPU_ATOMIC)
		*word = touch->value + index;
	else
		*sum += *word;
	if (to->in_vidmem)
		touch->device_hits++;
	else
		touch->host_hits++;
}

/*
 * One round: completes accesses in order up to the first that faults, and
 * writes packets for that one and those behind it that would fault too.
 */
static u32 round_of(struct user_channel *channel, struct softgpu_touch *touch, u64 *next, u64 *sum)
{
	u64 index, last_page = ~0ull, address;
	u32 pending = 0, type;
	bool allowed;

	for (index = *next; index < touch->count && pending < touch->in_flight; index++) {
		struct translation to = { 0 };

		address = touch->address + index * touch->stride;
		type = NV_PFAULT_FAULT_TYPE_PTE;
		allowed = gpu_walk(channel->space, address, &to) &&
			  fault_check(&to, touch->access, &type);
		if (allowed) {
			if (pending)
				continue;
			access_word(&to, touch, index, sum);
			*next = index + 1;
			continue;
		}
		if (address >> PAGE_SHIFT == last_page)
			continue;
		if (!fault_push(channel, address, touch->access, type))
			break;
		last_page = address >> PAGE_SHIFT;
		pending++;
		touch->faults++;
	}
	return pending;
}

int fault_touch(u32 handle, struct softgpu_touch *touch)
{
	unsigned long end = jiffies + msecs_to_jiffies(touch->timeout_ms);
	u32 cancels = atomic_read(&gpu.cancels), replays, pending;
	struct user_channel *channel;
	u64 next = 0, sum = 0;

	touch->faults = touch->waits = touch->device_hits = touch->host_hits = 0;
	touch->result = 0;
	if (!touch->in_flight)
		return -EINVAL;
	while (next < touch->count) {
		mutex_lock(&gpu.lock);
		channel = user_channel_find(handle);
		if (!channel) {
			mutex_unlock(&gpu.lock);
			return -ENOENT;
		}
		replays = atomic_read(&gpu.replays);
		pending = round_of(channel, touch, &next, &sum);
		mutex_unlock(&gpu.lock);
		if (pending) {
			fault_raise();
			wait_event_interruptible_timeout(gpu.replayed,
				atomic_read(&gpu.replays) != replays, HZ);
			touch->waits++;
		} else if (next < touch->count) {
			usleep_range(100, 200);	/* the buffer is full */
		}
		if (atomic_read(&gpu.cancels) != cancels)
			touch->result = -EFAULT;
		else if (signal_pending(current))
			touch->result = -EINTR;
		else if (time_after(jiffies, end))
			touch->result = -ETIMEDOUT;
		if (touch->result)
			break;
	}
	if (touch->access == SOFTGPU_READ)
		touch->value = sum;
	return 0;
}

int fault_settle(struct view *view, struct softgpu_settle *settle)
{
	u32 cancels;
	long left;

	fault_raise();
	left = wait_event_interruptible_timeout(gpu.replayed,
		atomic_read(&gpu.replays) != READ_ONCE(view->faulted_at),
		msecs_to_jiffies(settle->timeout_ms));
	if (left < 0)
		return -EINTR;
	if (left == 0)
		return -ETIMEDOUT;
	cancels = atomic_read(&gpu.cancels);
	settle->cancelled = cancels != view->cancels_seen;
	view->cancels_seen = cancels;
	return 0;
}
