/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Where nvidia-uvm keeps what the probes read. User space fills it in for the loaded
 * driver (src/offsets.rs has the table) before the programs are loaded; the verifier then
 * sees constants. Offsets in bytes.
 */
#ifndef OVERSUB_UVM_LAYOUT_H
#define OVERSUB_UVM_LAYOUT_H

struct ovs_uvm_layout {
	/* uvm_perf_event_data_t, for faults. */
	unsigned int fault_block;
	unsigned int fault_processor;
	/* gpu.buffer_entry, or cpu.fault_va. */
	unsigned int fault_entry;
	unsigned int fault_batch;
	/* And for migrations. */
	unsigned int migration_block;
	unsigned int migration_dst;
	unsigned int migration_src;
	unsigned int migration_address;
	unsigned int migration_bytes;
	unsigned int migration_cause;
	/* struct uvm_fault_buffer_entry_struct */
	unsigned int entry_address;
	unsigned int entry_instances;
	/* Bits of prefetch, read, write, atomics. */
	unsigned int entry_access;
	/* struct uvm_va_block_struct: first and last byte. */
	unsigned int block_start;
	unsigned int block_end;
	/* uvm_perf_va_space_events_t: its address space; 0: not known. */
	unsigned int events_space;
	/* uvm_perf_event_t */
	unsigned int event_fault;
	unsigned int event_migration;
	/* UVM_MAKE_RESIDENT_CAUSE_EVICTION */
	unsigned int cause_eviction;
	/* Which arguments of the function that begins a migration are what, from 0 on. */
	unsigned int begin_dst;
	unsigned int begin_src;
	unsigned int begin_address;
	unsigned int begin_cause;
};

#endif
