// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Probes on nvidia-uvm: kprobes on global functions that are called from another file of
 * the driver, so no compiler inlines them (checked from 535.183.01 to 595.45.04).
 *
 * Everything goes through uvm_perf_event_notify, which the driver calls for every fault
 * and migration. Faults arrive sorted by address within a batch, so one open record per
 * thread is enough to merge those of a block; state is keyed by thread, not by CPU,
 * because these paths sleep.
 */
#include "emit.h"
#include <bpf/bpf_core_read.h>

#include "uvm_layout.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct ovs_uvm_layout ovs_layout = {};

/* The only kernel type whose layout is asked of the running kernel. */
struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
} __attribute__((preserve_access_index));

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

/* Address space to process. */
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

/* Sends the open record, if there is one. */
static __always_inline void flush(struct ovs_service *service)
{
	struct ovs_event *event;

	if (!service->faults)
		return;
	event = ovs_reserve(OVS_FAULT, OVS_UVM);
	if (event) {
		event->time_ns = service->first_ns;
		event->address = service->address;
		event->space = service->space;
		event->tgid = process_of(service->space);
		event->faults = service->faults;
		event->raw_faults = service->raw_faults;
		event->batch = service->batch;
		event->processor = service->processor;
		ovs_submit(event);
	}
	service->faults = 0;
	service->raw_faults = 0;
}

static __always_inline void host_fault(__u64 space, __u64 data)
{
	struct ovs_event *event = ovs_reserve(OVS_FAULT, OVS_UVM);

	if (!event)
		return;
	event->address = read_u64(data, ovs_layout.fault_entry);
	event->space = space;
	event->tgid = process_of(space);
	event->faults = 1;
	event->raw_faults = 1;
	event->flags = OVS_BY_HOST;
	ovs_submit(event);
}

static __always_inline void device_fault(__u64 space, __u64 data, __u32 processor)
{
	__u64 entry = read_u64(data, ovs_layout.fault_entry);
	__u64 address = read_u64(entry, ovs_layout.entry_address);
	__u32 batch = read_u32(data, ovs_layout.fault_batch);
	__u32 instances = (__u16)read_u32(entry, ovs_layout.entry_instances);
	struct ovs_service *service;
	__u32 key = thread();

	service = bpf_map_lookup_elem(&ovs_services, &key);
	if (!service) {
		struct ovs_service fresh = {};

		bpf_map_update_elem(&ovs_services, &key, &fresh, BPF_ANY);
		service = bpf_map_lookup_elem(&ovs_services, &key);
		if (!service) {
			__sync_fetch_and_add(&ovs_drops, 1);
			return;
		}
	}
	if (service->faults && (service->space != space || service->batch != batch ||
				service->processor != processor ||
				(service->address ^ address) >= OVS_BLOCK_BYTES))
		flush(service);
	if (!service->faults) {
		service->first_ns = bpf_ktime_get_ns();
		service->space = space;
		service->address = address;
		service->batch = batch;
		service->processor = processor;
	}
	if (!service->batch_faults)
		service->batch_first_ns = service->first_ns;
	service->faults += 1;
	service->raw_faults += instances;
	service->batch_faults += 1;
	service->batch_raw_faults += instances;
}

static __always_inline void migration(__u64 space, __u64 data)
{
	__u32 dst = read_u32(data, ovs_layout.migration_dst);
	__u32 src = read_u32(data, ovs_layout.migration_src);
	__u64 bytes = read_u64(data, ovs_layout.migration_bytes);
	__u32 cause = read_u32(data, ovs_layout.migration_cause);
	struct ovs_event *event;

	if (cause == ovs_layout.cause_eviction) {
		__u32 key = thread();
		struct ovs_evicting *evicting = bpf_map_lookup_elem(&ovs_evictings, &key);

		if (evicting)
			evicting->copied_bytes += bytes;
	}
	event = ovs_reserve(OVS_MIGRATION, OVS_UVM);
	if (!event)
		return;
	event->address = read_u64(data, ovs_layout.migration_address);
	event->bytes = bytes;
	event->space = space;
	event->tgid = process_of(space);
	event->cause = cause;
	/* Processor 0 is the host. */
	if (dst && !src) {
		event->direction = OVS_IN;
		event->processor = dst;
	} else if (src && !dst) {
		event->direction = OVS_OUT;
		event->processor = src;
	} else {
		event->direction = OVS_ACROSS;
		event->processor = dst;
	}
	ovs_submit(event);
}

/* void uvm_perf_event_notify(uvm_perf_va_space_events_t *, uvm_perf_event_t,
 *                            uvm_perf_event_data_t *); uvm_perf_events.c */
SEC("?kprobe")
int uvm_notify(struct pt_regs *ctx)
{
	__u32 id = PT_REGS_PARM2(ctx);
	__u64 events, data, space;
	__u32 processor;

	if (id != ovs_layout.event_fault && id != ovs_layout.event_migration)
		return 0;
	events = PT_REGS_PARM1(ctx);
	data = PT_REGS_PARM3(ctx);
	space = ovs_layout.events_space ? read_u64(events, ovs_layout.events_space) : events;
	if (id == ovs_layout.event_migration) {
		migration(space, data);
		return 0;
	}
	processor = read_u32(data, ovs_layout.fault_processor);
	if (processor)
		device_fault(space, data, processor);
	else
		host_fault(space, data);
	return 0;
}

/* void uvm_[parent_]gpu_service_replayable_faults(gpu); uvm_gpu_replayable_faults.c */
SEC("?kprobe")
int uvm_service_begin(struct pt_regs *ctx)
{
	struct ovs_service fresh = {};
	__u32 key = thread();
	struct ovs_event *event;

	fresh.begin_ns = bpf_ktime_get_ns();
	bpf_map_update_elem(&ovs_services, &key, &fresh, BPF_ANY);
	event = ovs_reserve(OVS_SERVICE_BEGIN, OVS_UVM);
	if (event)
		ovs_submit(event);
	return 0;
}

SEC("?kretprobe")
int uvm_service_end(struct pt_regs *ctx)
{
	__u32 key = thread();
	struct ovs_service *service = bpf_map_lookup_elem(&ovs_services, &key);
	struct ovs_event *event;
	__u64 begin_ns;

	if (!service)
		return 0;
	flush(service);
	begin_ns = service->begin_ns;
	bpf_map_delete_elem(&ovs_services, &key);
	event = ovs_reserve(OVS_SERVICE_END, OVS_UVM);
	if (event) {
		if (begin_ns)
			event->duration_ns = event->time_ns - begin_ns;
		ovs_submit(event);
	}
	return 0;
}

/* void uvm_tools_broadcast_replay(uvm_gpu_t *, uvm_push_t *, NvU32 batch_id,
 *                                 uvm_fault_client_type_t); uvm_tools.c */
SEC("?kprobe")
int uvm_replay(struct pt_regs *ctx)
{
	__u32 key = thread();
	struct ovs_service *service = bpf_map_lookup_elem(&ovs_services, &key);
	struct ovs_event *event;

	if (!service)
		return 0;
	flush(service);
	/* A replay without faults of its own: a second client of the same batch. */
	if (!service->batch_faults)
		return 0;
	event = ovs_reserve(OVS_BATCH, OVS_UVM);
	if (event) {
		event->batch = PT_REGS_PARM3(ctx);
		event->faults = service->batch_faults;
		event->raw_faults = service->batch_raw_faults;
		event->processor = service->processor;
		event->duration_ns = event->time_ns - service->batch_first_ns;
		ovs_submit(event);
	}
	service->batch_faults = 0;
	service->batch_raw_faults = 0;
	return 0;
}

/* NV_STATUS uvm_va_block_evict_chunks(uvm_va_block_t *, uvm_gpu_t *, uvm_gpu_chunk_t *,
 *                                     uvm_tracker_t *); uvm_va_block.c */
SEC("?kprobe")
int uvm_evict_begin(struct pt_regs *ctx)
{
	__u64 block = PT_REGS_PARM1(ctx);
	struct ovs_evicting evicting = {};
	__u32 key = thread();

	evicting.begin_ns = bpf_ktime_get_ns();
	evicting.start = read_u64(block, ovs_layout.block_start);
	evicting.end = read_u64(block, ovs_layout.block_end);
	bpf_map_update_elem(&ovs_evictings, &key, &evicting, BPF_ANY);
	return 0;
}

SEC("?kretprobe")
int uvm_evict_end(struct pt_regs *ctx)
{
	__u32 key = thread();
	struct ovs_evicting *evicting = bpf_map_lookup_elem(&ovs_evictings, &key);
	struct ovs_event *event;

	if (!evicting)
		return 0;
	/* NV_OK: a failed eviction freed nothing. */
	event = (__u32)PT_REGS_RC(ctx) ? 0 : ovs_reserve(OVS_EVICTION, OVS_UVM);
	if (event) {
		event->address = evicting->start;
		event->bytes = evicting->end - evicting->start + 1;
		event->duration_ns = event->time_ns - evicting->begin_ns;
		event->cause = evicting->copied_bytes ? OVS_USED : OVS_UNUSED;
		ovs_submit(event);
	}
	bpf_map_delete_elem(&ovs_evictings, &key);
	return 0;
}

/* NV_STATUS uvm_va_range_create_mmap(uvm_va_space_t *, struct mm_struct *,
 *                                    uvm_vma_wrapper_t *, ...); uvm_va_range.c */
SEC("?kprobe")
int uvm_range_create(struct pt_regs *ctx)
{
	__u64 space = PT_REGS_PARM1(ctx);
	__u64 wrapper = PT_REGS_PARM3(ctx);
	__u32 tgid = ovs_tgid();
	struct vm_area_struct *vma;
	struct ovs_event *event;

	bpf_map_update_elem(&ovs_spaces, &space, &tgid, BPF_ANY);
	event = ovs_reserve(OVS_RANGE, OVS_UVM);
	if (!event)
		return 0;
	vma = (struct vm_area_struct *)read_u64(wrapper, 0);
	event->space = space;
	event->tgid = tgid;
	event->address = BPF_CORE_READ(vma, vm_start);
	event->bytes = BPF_CORE_READ(vma, vm_end) - event->address;
	ovs_submit(event);
	return 0;
}
