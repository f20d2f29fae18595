// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Physical memory, and the page tables that the driver writes into it (MMU
 * version 2, Pascal to Ampere: five levels, pages of 4 KiB, 64 KiB and 2 MiB).
 * The walk keeps nothing: what a TLB would hold is the mappings of view.c.
 */
#include "device.h"
#include "hwref/pascal/gp100/dev_mmu.h"

#define BIG_PAGE (64ull << 10)
#define SMALL_PAGE (4ull << 10)

/* The CPU's pointer to a device's physical address. */
void *gpu_physical(bool in_vidmem, u64 address, u64 *left)
{
	if (!in_vidmem) {
		if (!pfn_valid(address >> PAGE_SHIFT))
			return NULL;
		*left = ~0ull;
		return __va(address);
	}
	if (address >= gpu.memory_bytes) {
		pr_err_ratelimited("softgpu: no video memory at %#llx\n", address);
		return NULL;
	}
	*left = GRANULE - address % GRANULE;
	return page_address(gpu.granules[address / GRANULE]) + address % GRANULE;
}

static u64 *table(bool in_vidmem, u64 address)
{
	u64 left;

	return gpu_physical(in_vidmem, address, &left);
}

/* The table that a directory entry of the upper levels points to. */
static u64 *next_table(u64 entry)
{
	u64 shift = NV_MMU_VER2_PDE_ADDRESS_SHIFT;

	if (FIELD(entry, NV_MMU_VER2_PDE_IS_PTE))
		return NULL;
	switch (FIELD(entry, NV_MMU_VER2_PDE_APERTURE)) {
	case NV_MMU_VER2_PDE_APERTURE_INVALID:
		return NULL;
	case NV_MMU_VER2_PDE_APERTURE_VIDEO_MEMORY:
		return table(true, FIELD(entry, NV_MMU_VER2_PDE_ADDRESS_VID) << shift);
	default:
		return table(false, FIELD(entry, NV_MMU_VER2_PDE_ADDRESS_SYS) << shift);
	}
}

/* The table of big pages: its address is in units of 256 bytes. */
static u64 *big_table(u64 entry)
{
	u64 shift = NV_MMU_VER2_DUAL_PDE_ADDRESS_BIG_SHIFT;

	switch (FIELD(entry, NV_MMU_VER2_DUAL_PDE_APERTURE_BIG)) {
	case NV_MMU_VER2_DUAL_PDE_APERTURE_BIG_INVALID:
		return NULL;
	case NV_MMU_VER2_DUAL_PDE_APERTURE_BIG_VIDEO_MEMORY:
		return table(true, FIELD(entry, NV_MMU_VER2_DUAL_PDE_ADDRESS_BIG_VID) << shift);
	default:
		return table(false, FIELD(entry, NV_MMU_VER2_DUAL_PDE_ADDRESS_BIG_SYS) << shift);
	}
}

static bool leaf(u64 pte, u64 page, u64 address, struct translation *to)
{
	u64 shift = NV_MMU_VER2_PTE_ADDRESS_SHIFT, base, left;
	u64 aperture = FIELD(pte, NV_MMU_VER2_PTE_APERTURE);

	/* Another GPU's memory is not modelled. */
	if (aperture == NV_MMU_VER2_PTE_APERTURE_PEER_MEMORY)
		return false;
	to->in_vidmem = aperture == NV_MMU_VER2_PTE_APERTURE_VIDEO_MEMORY;
	base = to->in_vidmem ? FIELD(pte, NV_MMU_VER2_PTE_ADDRESS_VID)
			     : FIELD(pte, NV_MMU_VER2_PTE_ADDRESS_SYS);
	to->page = page;
	to->left = page - address % page;
	to->read_only = FIELD(pte, NV_MMU_VER2_PTE_READ_ONLY);
	to->no_atomics = FIELD(pte, NV_MMU_VER2_PTE_ATOMIC_DISABLE);
	to->cpu = gpu_physical(to->in_vidmem, (base << shift) + address % page, &left);
	if (!to->cpu)
		return false;
	to->physical = virt_to_phys(to->cpu);
	return true;
}

/* Follows the page tables. False: no valid entry. */
bool gpu_walk(struct gpu_space *space, u64 address, struct translation *to)
{
	static const u32 shifts[] = { 47, 38, 29 };
	static const u32 masks[] = { 3, 511, 511 };
	u64 *entries, low, high, pte;
	int level;

	if (!space->has_directory)
		return false;
	entries = table(space->directory_in_vidmem, space->directory);
	for (level = 0; level < ARRAY_SIZE(shifts) && entries; level++)
		entries = next_table(READ_ONCE(entries[(address >> shifts[level]) & masks[level]]));
	if (!entries)
		return false;

	/* The lowest directory has two halves: big pages (or one page of 2 MiB), small ones. */
	low = READ_ONCE(entries[((address >> 21) & 255) * 2]);
	high = READ_ONCE(entries[((address >> 21) & 255) * 2 + 1]);
	if (FIELD(low, NV_MMU_VER2_DUAL_PDE_IS_PTE))
		return leaf(low, GRANULE, address, to);
	entries = big_table(low);
	if (entries) {
		pte = READ_ONCE(entries[(address >> 16) & 31]);
		if (FIELD(pte, NV_MMU_VER2_PTE_VALID))
			return leaf(pte, BIG_PAGE, address, to);
		/* Privileged but not valid: "unmapped", whatever the small pages say. */
		if (FIELD(pte, NV_MMU_VER2_PTE_PRIVILEGE))
			return false;
	}
	entries = next_table(high & ~1ull);
	if (!entries)
		return false;
	pte = READ_ONCE(entries[(address >> 12) & 511]);
	return FIELD(pte, NV_MMU_VER2_PTE_VALID) && leaf(pte, SMALL_PAGE, address, to);
}

/* As the driver's own engines see it: RM's allocations first, then the page tables. */
bool gpu_translate(struct gpu_space *space, u64 address, struct translation *to)
{
	struct rm_memory *memory;

	list_for_each_entry(memory, &gpu.memory, node) {
		if (memory->space != space || address < memory->address ||
		    address - memory->address >= memory->bytes)
			continue;
		*to = (struct translation){
			.cpu = memory->cpu + (address - memory->address),
			.left = memory->address + memory->bytes - address,
		};
		return true;
	}
	return gpu_walk(space, address, to);
}
