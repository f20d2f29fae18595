/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the probes on nvidia-uvm remember between two calls, and how they read the driver's
 * memory. Everything that a thread does is keyed by the thread, never by the CPU: these
 * paths sleep and wake up elsewhere.
 */
#ifndef OVERSUB_UVM_STATE_H
#define OVERSUB_UVM_STATE_H

#include "emit.h"
#include "uvm_layout.h"

const volatile struct ovs_uvm_layout ovs_layout = {};

/* Structures whose content was compared with what it must be, and those that failed: the
   layout is another one, and nothing that it says is sent. */
__u64 ovs_checked = 0;
__u64 ovs_implausible = 0;

/* Processor numbers end here (UVM_ID_MAX_PROCESSORS, 550 to 595). */
#define OVS_PROCESSORS 257
/* uvm_make_resident_cause_t has nine values; room for three new ones. */
#define OVS_CAUSES 12
/* uvm_fault_access_type_mask has five bits. */
#define OVS_ACCESSES 32

/* What a thread that serves faults is doing. */
struct ovs_service {
	/* The open record; faults == 0: none. */
	__u64 first_ns;
	__u64 space;
	__u64 address;
	__u32 batch;
	__u32 faults;
	__u32 raw_faults;
	__u32 processor;
	/* The batch so far. */
	__u64 batch_first_ns;
	__u32 batch_faults;
	__u32 batch_raw_faults;
	/* The service loop; 0: not in it. */
	__u64 begin_ns;
};

/* What a thread that evicts is doing. */
struct ovs_evicting {
	__u64 begin_ns;
	__u64 start;
	__u64 end;
	__u64 copied_bytes;
	/* Whose memory, where something was copied. */
	__u64 space;
	__u32 copies;
	__u32 processor;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct ovs_service);
} ovs_services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct ovs_evicting);
} ovs_evictings SEC(".maps");

/* Address space to process; user space fills in those that are older than the probes. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u32);
} ovs_spaces SEC(".maps");

static __always_inline __u32 read_u32(__u64 base, __u32 offset)
{
	__u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(base + offset));
	return value;
}

static __always_inline __u64 read_u64(__u64 base, __u32 offset)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(base + offset));
	return value;
}

static __always_inline __u32 thread(void)
{
	return (__u32)bpf_get_current_pid_tgid();
}

static __always_inline __u32 process_of(__u64 space)
{
	__u32 *tgid = bpf_map_lookup_elem(&ovs_spaces, &space);

	return tgid ? *tgid : 0;
}

static __always_inline struct ovs_service *service_of_thread(void)
{
	__u32 key = thread();

	return bpf_map_lookup_elem(&ovs_services, &key);
}

static __always_inline int implausible(void)
{
	__sync_fetch_and_add(&ovs_implausible, 1);
	return 0;
}

/* Does the range lie in the block? Memory that belongs to no block cannot be checked. */
static __always_inline int in_block(__u64 block, __u64 address, __u64 bytes)
{
	__u64 start, end;

	__sync_fetch_and_add(&ovs_checked, 1);
	if (!block || !ovs_layout.block_start)
		return 1;
	start = read_u64(block, ovs_layout.block_start);
	end = read_u64(block, ovs_layout.block_end);
	return start < end && end - start < OVS_BLOCK_BYTES && address >= start &&
	       address <= end && bytes <= end - address + 1;
}

#endif
