/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * From the driver's notifications to records: faults, merged by block and batch, and
 * migrations. Faults arrive sorted by address within a batch, so one open record per thread
 * is enough.
 *
 * Whatever is read through a layout is compared with what it must be before it is believed:
 * an address lies in its block, a count is not zero, a cause exists.
 */
#ifndef OVERSUB_UVM_EVENTS_H
#define OVERSUB_UVM_EVENTS_H

#include "uvm_state.h"

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

static __always_inline int host_fault(__u64 space, __u64 data)
{
	__u64 address = read_u64(data, ovs_layout.fault_entry);
	struct ovs_event *event;

	if (!address || !in_block(read_u64(data, ovs_layout.fault_block), address, 1))
		return implausible();
	event = ovs_reserve(OVS_FAULT, OVS_UVM);
	if (!event)
		return 0;
	event->address = address;
	event->space = space;
	/* The host's faults are served by the thread that made them. */
	event->tgid = process_of(space);
	if (!event->tgid)
		event->tgid = ovs_tgid();
	event->faults = 1;
	event->raw_faults = 1;
	event->flags = OVS_BY_HOST;
	ovs_submit(event);
	return 0;
}

static __always_inline int device_fault(__u64 space, __u64 data, __u32 processor)
{
	__u64 entry = read_u64(data, ovs_layout.fault_entry);
	__u64 address = read_u64(entry, ovs_layout.entry_address);
	__u32 batch = read_u32(data, ovs_layout.fault_batch);
	__u32 instances = (__u16)read_u32(entry, ovs_layout.entry_instances);
	__u32 access = read_u32(entry, ovs_layout.entry_access);
	struct ovs_service *service;
	__u32 key = thread();

	if (processor > OVS_PROCESSORS || !instances || !access || access >= OVS_ACCESSES ||
	    !in_block(read_u64(data, ovs_layout.fault_block), address, 1))
		return implausible();
	service = bpf_map_lookup_elem(&ovs_services, &key);
	if (!service) {
		struct ovs_service fresh = {};

		bpf_map_update_elem(&ovs_services, &key, &fresh, BPF_ANY);
		service = bpf_map_lookup_elem(&ovs_services, &key);
		if (!service) {
			__sync_fetch_and_add(&ovs_drops, 1);
			return 0;
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
	return 0;
}

/* Remembers what an eviction copies. */
static __always_inline void note_eviction(__u64 space, __u64 address, __u64 bytes, __u32 src)
{
	__u32 key = thread();
	struct ovs_evicting *evicting = bpf_map_lookup_elem(&ovs_evictings, &key);

	if (!evicting)
		return;
	evicting->copied_bytes += bytes;
	evicting->copies += 1;
	evicting->space = space;
	evicting->processor = src;
	if (!evicting->start)
		evicting->start = address & ~(OVS_BLOCK_BYTES - 1);
}

/* bytes == 0: not known. Processor 0 is the host. */
static __always_inline int send_migration(__u64 space, __u64 address, __u64 bytes, __u32 dst,
					  __u32 src, __u32 cause)
{
	struct ovs_event *event;

	if (cause == ovs_layout.cause_eviction)
		note_eviction(space, address, bytes, src);
	event = ovs_reserve(OVS_MIGRATION, OVS_UVM);
	if (!event)
		return 0;
	event->address = address;
	event->bytes = bytes;
	event->space = space;
	event->tgid = process_of(space);
	event->cause = cause;
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
	return 0;
}

static __always_inline int migration(__u64 space, __u64 data)
{
	__u32 dst = read_u32(data, ovs_layout.migration_dst);
	__u32 src = read_u32(data, ovs_layout.migration_src);
	__u64 address = read_u64(data, ovs_layout.migration_address);
	__u64 bytes = read_u64(data, ovs_layout.migration_bytes);
	__u32 cause = read_u32(data, ovs_layout.migration_cause);

	if (dst > OVS_PROCESSORS || src > OVS_PROCESSORS || cause >= OVS_CAUSES || !bytes ||
	    bytes & 4095 || !in_block(read_u64(data, ovs_layout.migration_block), address, bytes))
		return implausible();
	return send_migration(space, address, bytes, dst, src, cause);
}

static __always_inline int notify(__u64 events, __u32 id, __u64 data)
{
	__u32 processor;
	__u64 space;

	if (id != ovs_layout.event_fault && id != ovs_layout.event_migration)
		return 0;
	space = ovs_layout.events_space ? read_u64(events, ovs_layout.events_space) : events;
	if (id == ovs_layout.event_migration)
		return migration(space, data);
	processor = read_u32(data, ovs_layout.fault_processor);
	return processor ? device_fault(space, data, processor) : host_fault(space, data);
}

#endif
