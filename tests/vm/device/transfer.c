// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Copies between a program's buffer and the device's address space, as read
 * and write of /dev/softgpu: the file's position is the device's address. What
 * RM's copy engines do for cuMemcpy, with faults of their own.
 */
#include "device.h"
#include "hwref/pascal/gp100/dev_fault.h"

#include <linux/fs.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

/* Longest wait for the driver's answer to one fault. */
#define PATIENCE (120 * HZ)

/* One attempt, under the lock: true when the bytes are copied, false when it faulted. */
static int attempt(struct view *view, u64 address, void *buffer, size_t bytes, u32 access,
		   u32 *replays)
{
	struct translation to = { 0 };
	u32 type = NV_PFAULT_FAULT_TYPE_PTE;
	struct user_channel *channel = user_channel_find(view->channel);

	if (!channel)
		return -ENOENT;
	if (!gpu_walk(channel->space, address, &to) || !fault_check(&to, access, &type)) {
		*replays = atomic_read(&gpu.replays);
		fault_push(channel, address, access, type);
		return false;
	}
	if (access == SOFTGPU_WRITE)
		memcpy(to.cpu, buffer, bytes);
	else
		memcpy(buffer, to.cpu, bytes);
	return true;
}

/* Copies bytes of one small page, waiting for the driver as often as it takes. */
static int reach(struct view *view, u64 address, void *buffer, size_t bytes, u32 access)
{
	u32 cancels = atomic_read(&gpu.cancels), replays = 0;
	long left;
	int done;

	for (;;) {
		mutex_lock(&gpu.lock);
		done = attempt(view, address, buffer, bytes, access, &replays);
		mutex_unlock(&gpu.lock);
		if (done)
			return done < 0 ? done : 0;
		fault_raise();
		left = wait_event_interruptible_timeout(gpu.replayed,
			atomic_read(&gpu.replays) != replays, PATIENCE);
		if (left < 0)
			return -EINTR;
		if (left == 0)
			return -ETIMEDOUT;
		if (atomic_read(&gpu.cancels) != cancels)
			return -EFAULT;
	}
}

static ssize_t transfer(struct file *file, char __user *user, size_t count, loff_t *position,
			u32 access)
{
	struct view *view = file->private_data;
	void *page;
	size_t done = 0, part;
	int error = 0;

	if (!view->bound)
		return -EINVAL;
	page = (void *)__get_free_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	while (done < count && !error) {
		part = min_t(size_t, count - done, PAGE_SIZE - (*position & ~PAGE_MASK));
		if (access == SOFTGPU_WRITE && copy_from_user(page, user + done, part))
			error = -EFAULT;
		if (!error)
			error = reach(view, *position, page, part, access);
		if (!error && access == SOFTGPU_READ && copy_to_user(user + done, page, part))
			error = -EFAULT;
		if (error)
			break;
		done += part;
		*position += part;
		cond_resched();
	}
	free_page((unsigned long)page);
	return done ? done : error;
}

ssize_t transfer_read(struct file *file, char __user *user, size_t count, loff_t *position)
{
	return transfer(file, user, count, position, SOFTGPU_READ);
}

ssize_t transfer_write(struct file *file, const char __user *user, size_t count, loff_t *position)
{
	return transfer(file, (char __user *)user, count, position, SOFTGPU_WRITE);
}
