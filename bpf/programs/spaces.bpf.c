// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Which process has which of the driver's address spaces: every open file of the driver's
 * device, in every process, with what the driver keeps in it. nvidia-uvm keeps the address
 * space's pointer in private_data, with the kind of the file in the low bits.
 *
 * Needs the kernel's own BTF and nothing of the driver; it serves for address spaces that
 * are older than the probes.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#include "oversub_events.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct inode {
	__u32 i_rdev;
} __attribute__((preserve_access_index));

struct file {
	struct inode *f_inode;
	void *private_data;
} __attribute__((preserve_access_index));

struct task_struct {
	int tgid;
} __attribute__((preserve_access_index));

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
} __attribute__((preserve_access_index));

struct ovs_space_file ovs_space_file_anchor = {};

/* Device number of the driver's address spaces, as the kernel keeps it. */
const volatile __u32 ovs_device = 0;

SEC("iter/task_file")
int uvm_spaces(struct bpf_iter__task_file *ctx)
{
	struct ovs_space_file found = {};
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;

	if (!task || !file || !ovs_device)
		return 0;
	if (BPF_CORE_READ(file, f_inode, i_rdev) != ovs_device)
		return 0;
	found.private_data = (__u64)BPF_CORE_READ(file, private_data);
	found.tgid = task->tgid;
	found.fd = ctx->fd;
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
