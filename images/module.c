/* Reads .modinfo of kernel modules (ELF64, little-endian). See module.h. */
#include "images/module.h"

#include <elf.h>
#include <errno.h>
#include <string.h>

/* A dash and an underscore are the same to the kernel. */
static void use_underscores(char *name)
{
    for (char *at = strchr(name, '-'); at != NULL; at = strchr(at, '-'))
        *at = '_';
}

bool bt_module_name(const char *path, char ret_name[BT_MODULE_NAME_SIZE])
{
    const char *base = strrchr(path, '/');
    base = base == NULL ? path : base + 1;
    const char *end = strstr(base, ".ko");
    if (end == NULL || (end[3] != '\0' && end[3] != '.'))
        return false;
    size_t length = (size_t)(end - base);
    if (length == 0 || length >= BT_MODULE_NAME_SIZE)
        return false;
    memcpy(ret_name, base, length);
    ret_name[length] = '\0';
    use_underscores(ret_name);
    return true;
}

static int malformed(struct bt_error *error)
{
    return bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL,
                   "cannot read a kernel module: it is no 64-bit ELF file");
}

/* Reads section header index; false when it or its contents lie outside the file. */
static bool read_section(const uint8_t *module, size_t length, const Elf64_Ehdr *header, size_t index,
                         Elf64_Shdr *ret_section)
{
    if (header->e_shoff > length || index > (length - header->e_shoff) / sizeof *ret_section)
        return false;
    size_t at = (size_t)header->e_shoff + index * sizeof *ret_section;
    if (length - at < sizeof *ret_section)
        return false;
    memcpy(ret_section, module + at, sizeof *ret_section);
    return ret_section->sh_type == SHT_NOBITS ||
           (ret_section->sh_offset <= length && ret_section->sh_size <= length - ret_section->sh_offset);
}

static bool is_named(const uint8_t *module, const Elf64_Shdr *names, const Elf64_Shdr *section,
                     const char *wanted)
{
    size_t size = strlen(wanted) + 1;
    return section->sh_name <= names->sh_size && size <= names->sh_size - section->sh_name &&
           memcmp(module + names->sh_offset + section->sh_name, wanted, size) == 0;
}

/* value is a comma-separated list, not NUL-terminated. */
static void add_names(const char *value, size_t length, struct bt_list *ret_names)
{
    while (length > 0) {
        const char *comma = memchr(value, ',', length);
        size_t part = comma == NULL ? length : (size_t)(comma - value);
        bt_auto_free char *name = bt_string_copy_length(value, part);
        use_underscores(name);
        if (part > 0 && !bt_list_has(ret_names, name))
            bt_list_add(ret_names, name);
        part += comma == NULL ? 0 : 1;
        length -= part;
        value += part;
    }
}

int bt_module_depends(const void *module, size_t length, struct bt_list *ret_names, struct bt_error *error)
{
    static const char key[] = "depends=";
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    const uint8_t *bytes = module;
    if (length < sizeof header)
        return malformed(error);
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_shentsize != sizeof section ||
        !read_section(bytes, length, &header, header.e_shstrndx, &names) || names.sh_type == SHT_NOBITS)
        return malformed(error);
    for (size_t i = 0; i < header.e_shnum; i++) {
        if (!read_section(bytes, length, &header, i, &section))
            return malformed(error);
        if (section.sh_type == SHT_NOBITS || !is_named(bytes, &names, &section, ".modinfo"))
            continue;
        const char *text = (const char *)bytes + section.sh_offset;
        size_t left = (size_t)section.sh_size;
        while (left > 0) {
            size_t part = strnlen(text, left);
            if (part >= sizeof key - 1 && memcmp(text, key, sizeof key - 1) == 0)
                add_names(text + sizeof key - 1, part - (sizeof key - 1), ret_names);
            part += part < left ? 1 : 0;
            text += part;
            left -= part;
        }
        return 0;
    }
    return malformed(error);
}
