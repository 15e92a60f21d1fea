#include "elf_file.h"

#include "../base/status.h"

namespace {

// AMDGPUUsage, "Header".
constexpr uint8_t kOsAbiHsa = 64;
constexpr uint8_t kAbiVersion4 = 2;
constexpr uint8_t kAbiVersion6 = 4;
constexpr uint16_t kMachineAmdGpu = 224;

}  // namespace

ElfFile::ElfFile(Bytes file) : file_(file), header_(file.read<Elf64_Ehdr>(0)) {
  require_code_object();
  segments_ = table<Elf64_Phdr>(header_.e_phoff, header_.e_phnum, header_.e_phentsize);
  sections_ = table<Elf64_Shdr>(header_.e_shoff, header_.e_shnum, header_.e_shentsize);
}

const Elf64_Shdr& ElfFile::linked(const Elf64_Shdr& section) const {
  if (section.sh_link >= sections_.size()) {
    fail(hipErrorInvalidImage, "a section refers to section %u of %zu", section.sh_link, sections_.size());
  }
  return sections_[section.sh_link];
}

std::vector<Bytes> ElfFile::notes(std::string_view owner, uint32_t type) const {
  std::vector<Bytes> found;
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type != PT_NOTE) continue;
    const Bytes all = contents(segment);
    const uint64_t alignment = segment.p_align == 8 ? 8 : 4;
    const auto padded = [&](uint64_t size) { return (size + alignment - 1) / alignment * alignment; };
    for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= all.size();) {
      const auto header = all.read<Elf64_Nhdr>(at);
      const uint64_t name_at = at + sizeof header;
      const uint64_t contents_at = name_at + padded(header.n_namesz);
      // The size of a name counts its terminating zero.
      const std::string_view name = all.text(name_at, header.n_namesz);
      if (header.n_type == type && name.substr(0, name.find('\0')) == owner) {
        found.push_back(all.slice(contents_at, header.n_descsz));
      }
      at = contents_at + padded(header.n_descsz);
    }
  }
  if (!found.empty()) return found;
  fail(hipErrorInvalidImage, "no note of type %u by %.*s", type, static_cast<int>(owner.size()), owner.data());
}

void ElfFile::require_code_object() const {
  if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) fail(hipErrorInvalidImage, "not an ELF file");
  if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB) {
    fail(hipErrorInvalidImage, "not a 64-bit little-endian ELF file");
  }
  if (header_.e_machine != kMachineAmdGpu || header_.e_ident[EI_OSABI] != kOsAbiHsa) {
    fail(hipErrorNoBinaryForGpu, "an ELF file for machine %u and OS ABI %u, not for AMD GPUs with HSA (%u and %u)",
         header_.e_machine, header_.e_ident[EI_OSABI], kMachineAmdGpu, kOsAbiHsa);
  }
  const uint8_t version = header_.e_ident[EI_ABIVERSION];
  if (version < kAbiVersion4 || version > kAbiVersion6) {
    fail(hipErrorInvalidImage, "ELF ABI version %u; code objects of version 4 to 6 have %u to %u", version,
         kAbiVersion4, kAbiVersion6);
  }
  if (header_.e_type != ET_DYN) {
    fail(hipErrorInvalidImage, "ELF type %u, not a shared object (%d): was it linked?", header_.e_type, ET_DYN);
  }
}

template <class Entry>
std::vector<Entry> ElfFile::table(uint64_t offset, size_t count, size_t entry_bytes) const {
  if (count > 0 && entry_bytes != sizeof(Entry)) {
    fail(hipErrorInvalidImage, "a header table with entries of %zu bytes, not %zu", entry_bytes, sizeof(Entry));
  }
  const Bytes source = file_.slice(offset, count * sizeof(Entry));
  std::vector<Entry> entries(count);
  for (size_t i = 0; i < count; ++i) entries[i] = source.read<Entry>(i * sizeof(Entry));
  return entries;
}

SymbolTable::SymbolTable(const ElfFile& elf, const Elf64_Shdr& section)
    : symbols_(elf.contents(section)), strings_(elf.contents(elf.linked(section))) {}

Elf64_Sym SymbolTable::at(uint64_t index) const {
  if (index >= count()) {
    fail(hipErrorInvalidImage, "symbol %llu of %zu", static_cast<unsigned long long>(index), count());
  }
  return symbols_.read<Elf64_Sym>(index * sizeof(Elf64_Sym));
}
