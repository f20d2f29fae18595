// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The device's address space as a mapping of a program: how code that stands
 * for GPU kernels reaches memory through the device's page tables. The host's
 * page table entries of the mapping are the device's TLB: filled by a walk
 * under the device's lock, dropped when the driver invalidates.
 */
#include "device.h"
#include "hwref/pascal/gp100/dev_fault.h"

#include <linux/fs.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}
#endif

struct fill {
	struct mm_struct *mm;
	unsigned long frame;
	pgprot_t protection;
};

static int fill_one(pte_t *entry, unsigned long address, void *context)
{
	struct fill *fill = context;

	if (pte_none(*entry))
		set_pte_at(fill->mm, address, entry,
			   pte_mkspecial(pfn_pte(fill->frame, fill->protection)));
	fill->frame++;
	return 0;
}

/* Maps the device's page that holds the access, as far as the mapping goes. */
static vm_fault_t fill_page(struct vm_area_struct *vma, unsigned long at, const struct translation *to)
{
	u64 before = to->page - to->left, start, end;
	struct fill fill;

	start = at - min_t(u64, before, at - vma->vm_start);
	end = at + min_t(u64, to->left, vma->vm_end - at);
	start = PAGE_ALIGN(start);
	fill.frame = (to->physical - (at - start)) >> PAGE_SHIFT;
	fill.mm = vma->vm_mm;
	/* The kernel write-protects what has a pfn_mkwrite; here the device's table decides. */
	fill.protection = __pgprot((pgprot_val(vma->vm_page_prot) & ~_PAGE_RW) | _PAGE_ACCESSED);
	if (!to->read_only && (vma->vm_flags & VM_WRITE))
		fill.protection = __pgprot(pgprot_val(fill.protection) | _PAGE_RW | _PAGE_DIRTY);
	if (apply_to_page_range(vma->vm_mm, start, end - start, fill_one, &fill))
		return VM_FAULT_OOM;
	return VM_FAULT_NOPAGE;
}

/* One access: mapped, or a packet for the driver and a signal for the program. */
static vm_fault_t reach(struct vm_fault *vmf, u32 access)
{
	struct vm_area_struct *vma = vmf->vma;
	struct view *view = vma->vm_file->private_data;
	unsigned long at = vmf->address & PAGE_MASK;
	u64 address = (u64)vma->vm_pgoff * PAGE_SIZE + (at - vma->vm_start);
	struct translation to = { 0 };
	u32 type = NV_PFAULT_FAULT_TYPE_PTE;
	struct user_channel *channel;
	vm_fault_t outcome = VM_FAULT_SIGBUS;

	mutex_lock(&gpu.lock);
	channel = user_channel_find(view->channel);
	if (!channel) {
		mutex_unlock(&gpu.lock);
		return VM_FAULT_SIGSEGV;
	}
	if (gpu_walk(channel->space, address, &to) && fault_check(&to, access, &type)) {
		outcome = fill_page(vma, at, &to);
	} else {
		WRITE_ONCE(view->faulted_at, atomic_read(&gpu.replays));
		fault_push(channel, address, access, type);
	}
	mutex_unlock(&gpu.lock);
	return outcome;
}

static vm_fault_t view_fault(struct vm_fault *vmf)
{
	return reach(vmf, vmf->flags & FAULT_FLAG_WRITE ? SOFTGPU_WRITE : SOFTGPU_READ);
}

/* A write to an entry that is mapped for reading: only the driver can change that. */
static vm_fault_t view_upgrade(struct vm_fault *vmf)
{
	zap_vma_ptes(vmf->vma, vmf->address & PAGE_MASK, PAGE_SIZE);
	return reach(vmf, SOFTGPU_WRITE);
}

static const struct vm_operations_struct view_operations = {
	.fault = view_fault,
	.pfn_mkwrite = view_upgrade,
};

int view_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct view *view = file->private_data;

	if (!view->bound || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	mutex_lock(&gpu.lock);
	gpu.view_mapping = file->f_mapping;
	mutex_unlock(&gpu.lock);
	vma->vm_ops = &view_operations;
	vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	return 0;
}

/* Drops what the mappings hold of a range of the device's addresses; 0 bytes: of all. */
void view_forget(u64 address, u64 bytes)
{
	if (gpu.view_mapping)
		unmap_mapping_range(gpu.view_mapping, address, bytes, 1);
}
