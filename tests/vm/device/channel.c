// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The host engine: takes pushbuffers from the rings of the driver's channels,
 * decodes methods, waits on semaphores, invalidates, replays. One kernel
 * thread runs all channels; a channel that waits keeps its place.
 */
#include "device.h"
#include "clc06f.h"
#include "clc46f.h"
#include "clc076.h"
#include "clc0b5.h"

#define REGISTER_GET 0
#define REGISTER_PUT 1
/* Methods below this are the host's, the rest are the engine's. */
#define HOST_METHODS 0x100

enum outcome { DONE, WAIT, BROKEN };

static enum outcome semaphore_acquire(struct channel *channel, u64 address, u32 op,
				      u32 equal, u32 at_least_signed, u32 at_least)
{
	struct translation to = { 0 };
	u32 value;

	if (!gpu_translate(channel->space, address, &to))
		return BROKEN;
	value = READ_ONCE(*(u32 *)to.cpu);
	if (op == equal)
		return value == channel->host.payload ? DONE : WAIT;
	if (op == at_least_signed)
		return (s32)(value - channel->host.payload) >= 0 ? DONE : WAIT;
	if (op == at_least)
		return value >= channel->host.payload ? DONE : WAIT;
	pr_err_ratelimited("softgpu: semaphore operation %u is not modelled\n", op);
	return DONE;
}

static u64 semaphore_address(struct channel *channel)
{
	return ((u64)(channel->host.address_hi & 0xff) << 32) | (channel->host.address_lo & ~3u);
}

static enum outcome semaphore_pascal(struct channel *channel, u32 value)
{
	u32 op = FIELD(value, NVC06F_SEMAPHORED_OPERATION);
	u64 address = semaphore_address(channel);
	bool with_time = FIELD(value, NVC06F_SEMAPHORED_RELEASE_SIZE) ==
			 NVC06F_SEMAPHORED_RELEASE_SIZE_16BYTE;

	if (op != NVC06F_SEMAPHORED_OPERATION_RELEASE)
		return semaphore_acquire(channel, address, op, NVC06F_SEMAPHORED_OPERATION_ACQUIRE,
					 NVC06F_SEMAPHORED_OPERATION_ACQ_GEQ, ~0u);
	smp_wmb();
	return semaphore_release(channel, address, channel->host.payload, with_time) ? DONE : BROKEN;
}

static enum outcome semaphore_turing(struct channel *channel, u32 value)
{
	u32 op = FIELD(value, NVC46F_SEM_EXECUTE_OPERATION);
	u64 address = semaphore_address(channel);
	bool with_time = FIELD(value, NVC46F_SEM_EXECUTE_RELEASE_TIMESTAMP);

	if (op != NVC46F_SEM_EXECUTE_OPERATION_RELEASE)
		return semaphore_acquire(channel, address, op, NVC46F_SEM_EXECUTE_OPERATION_ACQUIRE,
					 NVC46F_SEM_EXECUTE_OPERATION_ACQ_CIRC_GEQ,
					 NVC46F_SEM_EXECUTE_OPERATION_ACQ_STRICT_GEQ);
	smp_wmb();
	return semaphore_release(channel, address, channel->host.payload, with_time) ? DONE : BROKEN;
}

/* TLB invalidation, and the replay or cancel that rides on it. */
static void memory_op(struct channel *channel, u32 value)
{
	u32 op = FIELD(value, NVC06F_MEM_OP_D_OPERATION), how = channel->host.op_c;
	u32 replay = FIELD(how, NVC06F_MEM_OP_C_TLB_INVALIDATE_REPLAY);
	u64 address;

	if (op != NVC06F_MEM_OP_D_OPERATION_MMU_TLB_INVALIDATE &&
	    op != NVC06F_MEM_OP_D_OPERATION_MMU_TLB_INVALIDATE_TARGETED)
		return;
	gpu.done.invalidates++;
	if (replay != NVC06F_MEM_OP_C_TLB_INVALIDATE_REPLAY_NONE) {
		fault_replay(replay >= NVC06F_MEM_OP_C_TLB_INVALIDATE_REPLAY_CANCEL_TARGETED);
	} else if (op == NVC06F_MEM_OP_D_OPERATION_MMU_TLB_INVALIDATE_TARGETED) {
		/* The size of the page is not said: forget the largest. */
		address = ((u64)channel->host.op_b << 32) | (channel->host.op_a & ~0xfffu);
		view_forget(address & ~(GRANULE - 1), GRANULE);
	} else {
		view_forget(0, 0);
	}
}

static enum outcome host_method(struct channel *channel, u32 method, u32 value)
{
	switch (method) {
	case NVC06F_SEMAPHOREA:
	case NVC46F_SEM_ADDR_HI:
		channel->host.address_hi = value;
		return DONE;
	case NVC06F_SEMAPHOREB:
	case NVC46F_SEM_ADDR_LO:
		channel->host.address_lo = value;
		return DONE;
	case NVC06F_SEMAPHOREC:
	case NVC46F_SEM_PAYLOAD_LO:
		channel->host.payload = value;
		return DONE;
	case NVC06F_SEMAPHORED:
		return semaphore_pascal(channel, value);
	case NVC46F_SEM_EXECUTE:
		return semaphore_turing(channel, value);
	case NVC06F_MEM_OP_A:
		channel->host.op_a = value;
		return DONE;
	case NVC06F_MEM_OP_B:
		channel->host.op_b = value;
		return DONE;
	case NVC06F_MEM_OP_C:
		channel->host.op_c = value;
		return DONE;
	case NVC06F_MEM_OP_D:
		memory_op(channel, value);
		return DONE;
	/* Nothing is pipelined, and no fault of a channel has to be cleared. */
	case NVC06F_SET_OBJECT:
	case NVC06F_NOP:
	case NVC06F_NON_STALL_INTERRUPT:
	case NVC06F_WFI:
	case NVC46F_SEM_PAYLOAD_HI:
	case NVC46F_CLEAR_FAULTED:
		return DONE;
	default:
		pr_err_ratelimited("softgpu: host method %#x is not modelled\n", method);
		return DONE;
	}
}

static enum outcome copy_method(struct channel *channel, u32 method, u32 value)
{
	switch (method) {
	case NVC0B5_SET_SEMAPHORE_A: channel->copy.semaphore_hi = value; break;
	case NVC0B5_SET_SEMAPHORE_B: channel->copy.semaphore_lo = value; break;
	case NVC0B5_SET_SEMAPHORE_PAYLOAD: channel->copy.payload = value; break;
	case NVC0B5_SET_SRC_PHYS_MODE: channel->copy.source_mode = value; break;
	case NVC0B5_SET_DST_PHYS_MODE: channel->copy.target_mode = value; break;
	case NVC0B5_OFFSET_IN_UPPER: channel->copy.in_hi = value; break;
	case NVC0B5_OFFSET_IN_LOWER: channel->copy.in_lo = value; break;
	case NVC0B5_OFFSET_OUT_UPPER: channel->copy.out_hi = value; break;
	case NVC0B5_OFFSET_OUT_LOWER: channel->copy.out_lo = value; break;
	case NVC0B5_LINE_LENGTH_IN: channel->copy.bytes = value; break;
	case NVC0B5_LINE_COUNT: break;
	case NVC0B5_SET_REMAP_CONST_A: channel->copy.const_a = value; break;
	case NVC0B5_SET_REMAP_CONST_B: channel->copy.const_b = value; break;
	case NVC0B5_SET_REMAP_COMPONENTS: channel->copy.remap = value; break;
	case NVC0B5_LAUNCH_DMA: return copy_launch(channel, value) ? DONE : BROKEN;
	default: pr_err_ratelimited("softgpu: copy method %#x is not modelled\n", method);
	}
	return DONE;
}

static enum outcome run_method(struct channel *channel, u32 subchannel, u32 method, u32 value)
{
	if (method < HOST_METHODS)
		return host_method(channel, method, value);
	if (subchannel == UVM_SW_OBJ_SUBCHANNEL) {
		/* The software object, with which Pascal's driver cancels faults. */
		if (method == NVC076_FAULT_CANCEL_C)
			fault_replay(true);
		return DONE;
	}
	return copy_method(channel, method, value);
}

/* The program that the driver reads as the channel's error. */
static void stop(struct channel *channel, u64 address)
{
	pr_err_ratelimited("softgpu: channel %u stopped in its pushbuffer at %#llx\n",
			   channel->token, address);
	channel->error[0].info32 = 31;	/* ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT */
	channel->error[0].status = 0xffff;
	channel->dead = true;
}

/* Runs one header with its data. An acquire that has to wait begins the header again. */
static enum outcome run_header(struct channel *channel, const u32 *words, u32 left, u32 *used)
{
	u32 header = words[0], i, method, count = FIELD(header, NVC06F_DMA_METHOD_COUNT);
	u32 op = FIELD(header, NVC06F_DMA_SEC_OP);
	u32 subchannel = FIELD(header, NVC06F_DMA_METHOD_SUBCHANNEL);
	u32 first = FIELD(header, NVC06F_DMA_METHOD_ADDRESS) << 2;
	enum outcome outcome;

	*used = 1;
	if (op == NVC06F_DMA_SEC_OP_IMMD_DATA_METHOD)
		return run_method(channel, subchannel, first, count);
	if (op != NVC06F_DMA_SEC_OP_INC_METHOD && op != NVC06F_DMA_SEC_OP_NON_INC_METHOD &&
	    op != NVC06F_DMA_SEC_OP_ONE_INC) {
		if (header)
			pr_err_ratelimited("softgpu: method header %#x is not modelled\n", header);
		return DONE;
	}
	for (i = 0; i < count && i + 1 < left; i++) {
		method = first;
		if (op == NVC06F_DMA_SEC_OP_INC_METHOD)
			method += 4 * i;
		else if (op == NVC06F_DMA_SEC_OP_ONE_INC && i)
			method += 4;
		outcome = run_method(channel, subchannel, method, words[1 + i]);
		if (outcome != DONE)
			return outcome;
	}
	*used = 1 + count;
	return DONE;
}

/* Runs one entry of the ring: a piece of pushbuffer. */
static enum outcome run_entry(struct channel *channel, u64 entry)
{
	u32 low = (u32)entry, high = entry >> 32, used;
	u32 count = FIELD(high, NVC06F_GP_ENTRY1_LENGTH);
	u64 address = ((u64)FIELD(high, NVC06F_GP_ENTRY1_GET_HI) << 32) | (low & ~3u);
	struct translation to = { 0 };
	enum outcome outcome;

	if (!count)
		return DONE;
	if (!gpu_translate(channel->space, address, &to) || to.left < count * 4ull) {
		stop(channel, address);
		return BROKEN;
	}
	if (!channel->resume)
		gpu.done.pushes++;
	while (channel->resume < count) {
		outcome = run_header(channel, (u32 *)to.cpu + channel->resume,
				     count - channel->resume, &used);
		if (outcome == WAIT)
			return WAIT;
		if (outcome == BROKEN) {
			stop(channel, address + 4 * channel->resume);
			return BROKEN;
		}
		channel->resume += used;
	}
	channel->resume = 0;
	return DONE;
}

/* Runs what the driver has put into the rings. True: something was done. */
bool channels_run(void)
{
	struct channel *channel;
	bool any = false;
	u32 put;

	list_for_each_entry(channel, &gpu.channels, node) {
		put = READ_ONCE(channel->registers[REGISTER_PUT]);
		smp_rmb();
		while (channel->get != put && !channel->dead) {
			if (run_entry(channel, channel->ring[channel->get]) != DONE)
				break;
			any = true;
			channel->get = (channel->get + 1) % channel->entries;
			smp_wmb();
			WRITE_ONCE(channel->registers[REGISTER_GET], channel->get);
		}
	}
	return any;
}
