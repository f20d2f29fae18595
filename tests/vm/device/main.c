// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Parameters, the device's life, its version in procfs, and /dev/softgpu. */
#include "device.h"

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/kthread.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

/* QEMU's "edu" device lends its struct pci_dev, for the driver's DMA mappings. */
#define EDU_VENDOR 0x1234
#define EDU_DEVICE 0x11e8
/* RM's own allocations lie below what programs can name, above the first 4 GiB. */
#define FIRST_ADDRESS (1ull << 32)
#define FIRST_INSTANCE 0x10000ull
/* How long the engine looks for work before it sleeps, and then sleeps at a time. */
#define EAGER_NS 2000000ull
#define SLEEP_US 100

struct software_gpu gpu;

static ulong memory_mb = 64;
module_param(memory_mb, ulong, 0444);
MODULE_PARM_DESC(memory_mb, "video memory, MiB; even");
static char *model = "pascal";
module_param(model, charp, 0444);
MODULE_PARM_DESC(model, "pascal or turing");
bool drop_copies;
module_param(drop_copies, bool, 0644);
MODULE_PARM_DESC(drop_copies, "negative control: leave out copies of 8 KiB and more");

static void interrupt(struct irq_work *work)
{
	struct UvmOpsUvmEvents *driver = READ_ONCE(gpu.driver);

	gpu.done.interrupts++;
	if (driver && driver->isrTopHalf)
		driver->isrTopHalf(&gpu.uuid);
}

static int engine(void *unused)
{
	unsigned long raised = jiffies;
	u64 now, busy_until = 0;
	bool any;

	while (!kthread_should_stop()) {
		now = ktime_get_ns();
		WRITE_ONCE(gpu.clock[1], now >> 32);
		WRITE_ONCE(gpu.clock[0], (u32)now);
		mutex_lock(&gpu.lock);
		any = channels_run();
		mutex_unlock(&gpu.lock);
		/* The interrupt's line stays up for as long as packets wait. */
		if (gpu.faults_on && gpu.registers[REG_PUT] != gpu.registers[REG_GET] &&
		    time_after(jiffies, raised + 1)) {
			raised = jiffies;
			fault_raise();
		}
		if (any)
			busy_until = now + EAGER_NS;
		if (now < busy_until)
			usleep_range(1, 10);
		else
			usleep_range(SLEEP_US, 2 * SLEEP_US);
	}
	return 0;
}

static long softgpu_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	void __user *user = (void __user *)argument;
	struct view *view = file->private_data;
	union {
		struct softgpu_info info;
		struct softgpu_bind bind;
		struct softgpu_touch touch;
		struct softgpu_settle settle;
	} with;
	size_t size = _IOC_SIZE(command);
	int error = 0;

	if (size > sizeof(with) || copy_from_user(&with, user, size))
		return -EFAULT;
	switch (command) {
	case SOFTGPU_INFO:
		mutex_lock(&gpu.lock);
		with.info = gpu.done;
		with.info.free_bytes = gpu.statistics.numFreePages2m * GRANULE;
		mutex_unlock(&gpu.lock);
		with.info.memory_bytes = gpu.memory_bytes;
		memcpy(with.info.uuid, gpu.uuid.uuid, sizeof(with.info.uuid));
		break;
	case SOFTGPU_BIND:
		mutex_lock(&gpu.lock);
		if (!user_channel_find(with.bind.channel))
			error = -ENOENT;
		mutex_unlock(&gpu.lock);
		if (error)
			return error;
		view->channel = with.bind.channel;
		view->bound = true;
		view->cancels_seen = atomic_read(&gpu.cancels);
		break;
	case SOFTGPU_TOUCH:
		error = view->bound ? fault_touch(view->channel, &with.touch) : -EINVAL;
		break;
	case SOFTGPU_SETTLE:
		error = fault_settle(view, &with.settle);
		break;
	default:
		return -ENOTTY;
	}
	if (!error && (_IOC_DIR(command) & _IOC_READ) && copy_to_user(user, &with, size))
		error = -EFAULT;
	return error;
}

static int softgpu_open(struct inode *inode, struct file *file)
{
	struct view *view = kzalloc(sizeof(*view), GFP_KERNEL);

	if (!view)
		return -ENOMEM;
	file->private_data = view;
	mutex_lock(&gpu.lock);
	gpu.open_views++;
	mutex_unlock(&gpu.lock);
	return 0;
}

static int softgpu_release(struct inode *inode, struct file *file)
{
	mutex_lock(&gpu.lock);
	if (--gpu.open_views == 0)
		gpu.view_mapping = NULL;
	mutex_unlock(&gpu.lock);
	kfree(file->private_data);
	return 0;
}

static const struct file_operations softgpu_operations = {
	.owner = THIS_MODULE,
	.open = softgpu_open,
	.release = softgpu_release,
	.unlocked_ioctl = softgpu_ioctl,
	.mmap = view_mmap,
	.read = transfer_read,
	.write = transfer_write,
};

static struct miscdevice softgpu_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "softgpu",
	.fops = &softgpu_operations,
	.mode = 0666,
};

/* What nvidia.ko says of itself, by which programs know its flavour. */
#define VERSION_FOLDER "driver/nvidia"

static int show_version(struct seq_file *file, void *unused)
{
	seq_printf(file, "NVRM version: NVIDIA UNIX %s  %s\n", RM_FLAVOUR_NAME, NV_VERSION_STRING);
	return 0;
}

static int make_version(void)
{
	struct proc_dir_entry *folder = proc_mkdir(VERSION_FOLDER, NULL);

	if (folder && proc_create_single("version", 0444, folder, show_version))
		return 0;
	remove_proc_subtree(VERSION_FOLDER, NULL);
	return -ENOMEM;
}

static void free_memory(void)
{
	u64 index;

	for (index = 0; gpu.granules && index < gpu.memory_bytes / GRANULE; index++)
		if (gpu.granules[index])
			__free_pages(gpu.granules[index], get_order(GRANULE));
	kvfree(gpu.granules);
	bitmap_free(gpu.taken);
	vfree(gpu.fault_buffer);
}

static int make_memory(void)
{
	u64 granules = memory_mb / 2, index;

	gpu.memory_bytes = granules * GRANULE;
	gpu.granules = kvcalloc(granules, sizeof(*gpu.granules), GFP_KERNEL);
	gpu.taken = bitmap_zalloc(granules, GFP_KERNEL);
	gpu.fault_buffer = vzalloc(FAULT_ENTRIES * FAULT_ENTRY_BYTES);
	if (!gpu.granules || !gpu.taken || !gpu.fault_buffer)
		return -ENOMEM;
	for (index = 0; index < granules; index++) {
		gpu.granules[index] = alloc_pages(GFP_KERNEL | __GFP_ZERO, get_order(GRANULE));
		if (!gpu.granules[index])
			return -ENOMEM;
	}
	/* The first granule is RM's: instance blocks are named in it. */
	__set_bit(0, gpu.taken);
	gpu.statistics.numPages2m = granules;
	gpu.statistics.numFreePages2m = granules - 1;
	gpu.statistics.numFreePages64k = (granules - 1) * 32;
	return 0;
}

static int __init softgpu_init(void)
{
	int error;

	mutex_init(&gpu.lock);
	INIT_LIST_HEAD(&gpu.spaces);
	INIT_LIST_HEAD(&gpu.memory);
	INIT_LIST_HEAD(&gpu.channels);
	INIT_LIST_HEAD(&gpu.user_channels);
	init_waitqueue_head(&gpu.replayed);
	init_irq_work(&gpu.interrupt, interrupt);
	gpu.next_address = FIRST_ADDRESS;
	gpu.next_instance = FIRST_INSTANCE;
	memcpy(gpu.uuid.uuid, "oversub softgpu0", sizeof(gpu.uuid.uuid));
	if (!strcmp(model, "turing"))
		gpu.model = MODEL_TURING;
	else if (strcmp(model, "pascal"))
		return -EINVAL;
	if (memory_mb < 8 || memory_mb % 2)
		return -EINVAL;
	gpu.pci = pci_get_device(EDU_VENDOR, EDU_DEVICE, NULL);
	if (!gpu.pci) {
		pr_err("softgpu: no PCI device to stand behind; start QEMU with -device edu\n");
		return -ENODEV;
	}
	error = dma_set_mask_and_coherent(&gpu.pci->dev, DMA_BIT_MASK(46));
	if (!error)
		error = make_memory();
	if (error)
		goto failed;
	gpu.engine = kthread_run(engine, NULL, "softgpu");
	if (IS_ERR(gpu.engine)) {
		error = PTR_ERR(gpu.engine);
		goto failed;
	}
	error = make_version();
	if (error)
		goto stop;
	error = misc_register(&softgpu_device);
	if (!error)
		return 0;
	remove_proc_subtree(VERSION_FOLDER, NULL);
stop:
	kthread_stop(gpu.engine);
failed:
	free_memory();
	pci_dev_put(gpu.pci);
	return error;
}

static void __exit softgpu_exit(void)
{
	misc_deregister(&softgpu_device);
	remove_proc_subtree(VERSION_FOLDER, NULL);
	kthread_stop(gpu.engine);
	irq_work_sync(&gpu.interrupt);
	free_memory();
	pci_dev_put(gpu.pci);
}

module_init(softgpu_init);
module_exit(softgpu_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Software GPU in the place of nvidia.ko, for tests of nvidia-uvm.ko");
MODULE_VERSION(NV_VERSION_STRING);
