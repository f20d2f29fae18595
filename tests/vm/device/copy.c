// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The copy engine: copies and memsets between physical and virtual addresses,
 * and the semaphores that tell the driver of their end. Everything is done at
 * once and in order, so pipelining, flushes and barriers have nothing to do.
 */
#include "device.h"
#include "clc0b5.h"

/* Copies of page tables and semaphores go through even when the rest is dropped. */
#define DROPPED_FROM 8192

/*
 * The kernel's memcpy may be one string instruction, which QEMU emulates byte
 * by byte.
 */
static void copy_words(void *to, const void *from, u64 bytes)
{
	u64 *target = to, i, words = bytes / 8;
	const u64 *source = from;

	if (((uintptr_t)to | (uintptr_t)from | bytes) & 7) {
		memcpy(to, from, bytes);
		return;
	}
	for (i = 0; i < words; i++)
		WRITE_ONCE(target[i], source[i]);
}

static u64 joined(u32 high, u32 low)
{
	return ((u64)high << 32) | low;
}

/* The CPU's pointer to one side of a copy. */
static void *side(struct channel *channel, bool virtual, u32 mode, u64 address, u64 *left)
{
	struct translation to = { 0 };

	if (!virtual)
		return gpu_physical(FIELD(mode, NVC0B5_SET_SRC_PHYS_MODE_TARGET) ==
				    NVC0B5_SET_SRC_PHYS_MODE_TARGET_LOCAL_FB, address, left);
	if (!gpu_translate(channel->space, address, &to))
		return NULL;
	*left = to.left;
	return to.cpu;
}

bool semaphore_release(struct channel *channel, u64 address, u32 payload, bool with_time)
{
	struct translation to = { 0 };

	if (!gpu_translate(channel->space, address, &to))
		return false;
	if (with_time) {
		((u64 *)to.cpu)[1] = ktime_get_ns();
		smp_wmb();
	}
	WRITE_ONCE(*(u32 *)to.cpu, payload);
	return true;
}

/* Writes a pattern, which the remap unit makes of constants. */
static bool fill(struct channel *channel, bool virtual, u64 target, u64 elements)
{
	u32 remap = channel->copy.remap, component, i;
	u32 width = FIELD(remap, NVC0B5_SET_REMAP_COMPONENTS_COMPONENT_SIZE) + 1;
	u32 count = FIELD(remap, NVC0B5_SET_REMAP_COMPONENTS_NUM_DST_COMPONENTS) + 1;
	u32 pattern = width * count;
	u64 bytes = elements * pattern, left, part;
	u8 element[16], *to;

	for (component = 0; component < count; component++) {
		u32 from = (remap >> (4 * component)) & 7;
		u32 value = from == NVC0B5_SET_REMAP_COMPONENTS_DST_X_CONST_A ?
			channel->copy.const_a : channel->copy.const_b;

		memcpy(element + component * width, &value, width);
	}
	gpu.done.copied_bytes += bytes;
	while (bytes) {
		to = side(channel, virtual, channel->copy.target_mode, target, &left);
		if (!to)
			return false;
		part = min(bytes, left);
		if (pattern == 1)
			memset(to, element[0], part);
		else if (pattern == 8 && part % 8 == 0)
			memset64((u64 *)to, *(u64 *)element, part / 8);
		else
			for (i = 0; i < part; i++)
				to[i] = element[i % pattern];
		target += part;
		bytes -= part;
	}
	return true;
}

static bool copy(struct channel *channel, bool from_virtual, bool to_virtual, u64 source, u64 target)
{
	u64 bytes = channel->copy.bytes, source_left, target_left, part;
	void *from, *to;

	if (drop_copies && bytes >= DROPPED_FROM) {
		gpu.done.dropped_copies++;
		return true;
	}
	gpu.done.copied_bytes += bytes;
	while (bytes) {
		from = side(channel, from_virtual, channel->copy.source_mode, source, &source_left);
		to = side(channel, to_virtual, channel->copy.target_mode, target, &target_left);
		if (!from || !to)
			return false;
		part = min3(bytes, source_left, target_left);
		copy_words(to, from, part);
		source += part;
		target += part;
		bytes -= part;
	}
	return true;
}

/* The semaphore at the end of a command: a release, or an addition. */
static bool finish(struct channel *channel, u32 command)
{
	u32 type = FIELD(command, NVC0B5_LAUNCH_DMA_SEMAPHORE_TYPE);
	u64 address = joined(channel->copy.semaphore_hi, channel->copy.semaphore_lo);
	struct translation to = { 0 };
	u32 *word, limit = channel->copy.payload;

	if (type == NVC0B5_LAUNCH_DMA_SEMAPHORE_TYPE_NONE)
		return true;
	smp_wmb();
	if (!FIELD(command, NVC0B5_LAUNCH_DMA_SEMAPHORE_REDUCTION_ENABLE))
		return semaphore_release(channel, address, limit,
			type == NVC0B5_LAUNCH_DMA_SEMAPHORE_TYPE_RELEASE_FOUR_WORD_SEMAPHORE);
	if (FIELD(command, NVC0B5_LAUNCH_DMA_SEMAPHORE_REDUCTION) !=
	    NVC0B5_LAUNCH_DMA_SEMAPHORE_REDUCTION_INC) {
		pr_err_ratelimited("softgpu: semaphore reduction %#x is not modelled\n", command);
		return true;
	}
	if (!gpu_translate(channel->space, address, &to))
		return false;
	word = to.cpu;
	*word = *word >= limit ? 0 : *word + 1;
	return true;
}

bool copy_launch(struct channel *channel, u32 command)
{
	bool from_virtual = FIELD(command, NVC0B5_LAUNCH_DMA_SRC_TYPE) ==
			    NVC0B5_LAUNCH_DMA_SRC_TYPE_VIRTUAL;
	bool to_virtual = FIELD(command, NVC0B5_LAUNCH_DMA_DST_TYPE) ==
			  NVC0B5_LAUNCH_DMA_DST_TYPE_VIRTUAL;
	u64 source = joined(channel->copy.in_hi, channel->copy.in_lo);
	u64 target = joined(channel->copy.out_hi, channel->copy.out_lo);
	bool ok = true;

	if (FIELD(command, NVC0B5_LAUNCH_DMA_DATA_TRANSFER_TYPE) !=
	    NVC0B5_LAUNCH_DMA_DATA_TRANSFER_TYPE_NONE) {
		gpu.done.copies++;
		if (FIELD(command, NVC0B5_LAUNCH_DMA_REMAP_ENABLE))
			ok = fill(channel, to_virtual, target, channel->copy.bytes);
		else
			ok = copy(channel, from_virtual, to_virtual, source, target);
	}
	return ok && finish(channel, command);
}
