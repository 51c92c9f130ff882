/* Finds and unpacks the payload of a bzImage. See vmlinux.h.
 *
 * Called by the kernel builder. The package was verified by apt, yet every offset is checked: a kernel of an
 * unexpected form must fall back, not crash.
 */
#include "images/vmlinux.h"

#include <elf.h>
#include <errno.h>
#include <string.h>

#include "images/archive.h"

#define KERNEL_MAX (256UL * 1024 * 1024)
#define NOTE_PVH_ENTRY 18 /* XEN_ELFNOTE_PHYS32_ENTRY, xen/interface/elfnote.h */

/* Offsets in the setup header. */
enum {
    SETUP_SECTORS = 0x1f1,
    SETUP_MAGIC = 0x202,
    SETUP_VERSION = 0x206,
    SETUP_PAYLOAD_OFFSET = 0x248,
    SETUP_PAYLOAD_LENGTH = 0x24c,
    SETUP_END = 0x250,
};

static int not_supported(struct bt_error *error, const char *why)
{
    return bt_fail(error, BT_EXIT_ERROR, ENOTSUP, NULL, "cannot take the kernel apart: %s", why);
}

static bool is_pvh_note(const uint8_t *note, size_t length)
{
    size_t at = 0;
    while (length - at >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr header;
        memcpy(&header, note + at, sizeof header);
        size_t name = at + sizeof header;
        size_t name_length = ((size_t)header.n_namesz + 3) & ~(size_t)3;
        size_t content_length = ((size_t)header.n_descsz + 3) & ~(size_t)3;
        if (name_length > length - name || content_length > length - name - name_length)
            return false;
        if (header.n_type == NOTE_PVH_ENTRY && header.n_namesz == 4 && memcmp(note + name, "Xen", 4) == 0)
            return true;
        at = name + name_length + content_length;
    }
    return false;
}

static bool has_pvh_entry(const uint8_t *kernel, size_t length)
{
    Elf64_Ehdr header;
    if (length < sizeof header)
        return false;
    memcpy(&header, kernel, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_machine != EM_X86_64 || header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > length)
        return false;
    for (size_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr program;
        size_t at = (size_t)header.e_phoff + i * sizeof program;
        if (at > length || length - at < sizeof program)
            return false;
        memcpy(&program, kernel + at, sizeof program);
        if (program.p_type == PT_NOTE && program.p_offset <= length &&
            program.p_filesz <= length - program.p_offset &&
            is_pvh_note(kernel + program.p_offset, (size_t)program.p_filesz))
            return true;
    }
    return false;
}

int bt_vmlinux_extract(const void *image, size_t length, struct bt_buffer *ret_kernel, struct bt_error *error)
{
    const uint8_t *bytes = image;
    if (length < SETUP_END || memcmp(bytes + SETUP_MAGIC, "HdrS", 4) != 0 ||
        bt_load_u16(bytes + SETUP_VERSION) < 0x208)
        return not_supported(error, "it is no bzImage");
    size_t sectors = bytes[SETUP_SECTORS] == 0 ? 4 : bytes[SETUP_SECTORS];
    size_t start = (sectors + 1) * 512 + bt_load_u32(bytes + SETUP_PAYLOAD_OFFSET);
    size_t payload = bt_load_u32(bytes + SETUP_PAYLOAD_LENGTH);
    if (start > length || payload > length - start || payload < 8)
        return not_supported(error, "its payload lies outside the file");
    /* The kernel build appends the unpacked size to all formats but gzip, whose own trailer it is. */
    static const uint8_t gzip_magic[] = {0x1f, 0x8b};
    if (memcmp(bytes + start, gzip_magic, sizeof gzip_magic) != 0)
        payload -= 4;
    bt_auto_buffer kernel = {0};
    int result = bt_archive_decompress(bytes + start, payload, KERNEL_MAX, &kernel, error);
    if (result < 0)
        return result;
    if (!has_pvh_entry((const uint8_t *)kernel.data, kernel.length))
        return not_supported(error, "it has no PVH entry");
    *ret_kernel = kernel;
    memset(&kernel, 0, sizeof kernel);
    return 0;
}
