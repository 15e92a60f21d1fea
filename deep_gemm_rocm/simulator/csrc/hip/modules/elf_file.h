// The parts of an ELF file that a loader needs, every access checked.
#pragma once

#include <elf.h>

#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"

class ElfFile {
 public:
  // Fails unless it is a linked code object of version 4 to 6 for AMD GPUs with HSA.
  explicit ElfFile(Bytes file);

  uint32_t flags() const { return header_.e_flags; }
  const std::vector<Elf64_Phdr>& segments() const { return segments_; }
  const std::vector<Elf64_Shdr>& sections() const { return sections_; }

  Bytes contents(const Elf64_Phdr& segment) const { return file_.slice(segment.p_offset, segment.p_filesz); }
  Bytes contents(const Elf64_Shdr& section) const { return file_.slice(section.sh_offset, section.sh_size); }

  // The section that sh_link names.
  const Elf64_Shdr& linked(const Elf64_Shdr& section) const;

  // The contents of all notes of this owner and type; at least one. A linker copies those of all of its inputs.
  std::vector<Bytes> notes(std::string_view owner, uint32_t type) const;

 private:
  void require_code_object() const;
  template <class Entry>
  std::vector<Entry> table(uint64_t offset, size_t count, size_t entry_bytes) const;

  Bytes file_;
  Elf64_Ehdr header_;
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
};

class SymbolTable {
 public:
  SymbolTable(const ElfFile& elf, const Elf64_Shdr& section);

  size_t count() const { return symbols_.size() / sizeof(Elf64_Sym); }
  Elf64_Sym at(uint64_t index) const;
  std::string name(const Elf64_Sym& symbol) const { return std::string(strings_.zero_terminated(symbol.st_name)); }

 private:
  Bytes symbols_;
  Bytes strings_;
};
