#include "offload_bundle.h"

#include <elf.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../base/host_memory.h"
#include "../device/device.h"

namespace {

constexpr std::string_view kBundleMagic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr std::string_view kCompressedMagic = "CCOB";
constexpr uint64_t kMaxEntries = 1024;
constexpr uint64_t kMaxIdBytes = 1024;

bool is_elf(Bytes image) { return image.starts_with(std::string_view(ELFMAG, SELFMAG)); }

// ---- sizes of images that come as a bare pointer

// A bundle's or a file's header is read before its size is known, so each piece is checked on its own.
template <class Value>
Value read_at(const void* image, uint64_t offset) {
  Value value;
  read_from_host(&value, static_cast<const char*>(image) + offset, sizeof value, "the image");
  return value;
}

template <class Value>
std::vector<Value> read_table_at(const void* image, uint64_t offset, size_t count) {
  std::vector<Value> table(count);
  read_from_host(table.data(), static_cast<const char*>(image) + offset, count * sizeof(Value), "the image");
  return table;
}

void extend(uint64_t& size, uint64_t offset, uint64_t count, uint64_t bytes = 1) {
  uint64_t end;
  if (__builtin_mul_overflow(count, bytes, &end) || __builtin_add_overflow(end, offset, &end)) {
    fail(hipErrorInvalidImage, "its headers describe more bytes than an address space has");
  }
  size = std::max(size, end);
}

uint64_t elf_size(const void* image) {
  const auto header = read_at<Elf64_Ehdr>(image, 0);
  uint64_t size = sizeof header;
  extend(size, header.e_phoff, header.e_phnum, sizeof(Elf64_Phdr));
  extend(size, header.e_shoff, header.e_shnum, sizeof(Elf64_Shdr));
  for (const auto& segment : read_table_at<Elf64_Phdr>(image, header.e_phoff, header.e_phnum)) {
    extend(size, segment.p_offset, segment.p_filesz);
  }
  for (const auto& section : read_table_at<Elf64_Shdr>(image, header.e_shoff, header.e_shnum)) {
    if (section.sh_type != SHT_NOBITS) extend(size, section.sh_offset, section.sh_size);
  }
  return size;
}

struct EntryHeader {
  uint64_t offset;
  uint64_t size;
  uint64_t id_size;
};

void require_sane(uint64_t entry_count) {
  if (entry_count > kMaxEntries) {
    fail(hipErrorInvalidImage, "offload bundle with %llu entries", static_cast<unsigned long long>(entry_count));
  }
}

void require_sane(const EntryHeader& entry) {
  if (entry.id_size > kMaxIdBytes) {
    fail(hipErrorInvalidImage, "offload bundle entry with a name of %llu bytes",
         static_cast<unsigned long long>(entry.id_size));
  }
}

uint64_t bundle_size(const void* image) {
  const auto count = read_at<uint64_t>(image, kBundleMagic.size());
  require_sane(count);
  uint64_t size = kBundleMagic.size() + sizeof count;
  for (uint64_t i = 0, at = size; i < count; ++i) {
    const auto entry = read_at<EntryHeader>(image, at);
    require_sane(entry);
    at += sizeof entry + entry.id_size;
    extend(size, at, 0);
    extend(size, entry.offset, entry.size);
  }
  return size;
}

[[noreturn]] void refuse_compressed() {
  fail(hipErrorInvalidImage,
       "the offload bundle is compressed (CCOB), which the simulated MI300X does not read: compile without "
       "--offload-compress");
}

// ---- the entry for this device

bool consume(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// How well code for a target such as "gfx942:sramecc+" fits; 0 if it doesn't. Code whose target doesn't name a feature
// runs with either setting of it, so a target that names more features fits better.
int fit(std::string_view target) {
  const size_t processor_end = std::min(target.find(':'), target.size());
  const std::string_view processor = target.substr(0, processor_end);
  int score = processor == device::kProcessor ? 10 : processor == "gfx9-4-generic" ? 1 : 0;
  if (score == 0) return 0;
  for (std::string_view features = target.substr(processor_end); consume(features, ":");) {
    const std::string_view feature = features.substr(0, features.find(':'));
    if (feature != "sramecc+" && feature != "xnack-") return 0;
    features.remove_prefix(feature.size());
    ++score;
  }
  return score;
}

// The target in an entry's name: kind, triple and target are joined by '-', for instance
// "hipv4-amdgcn-amd-amdhsa--gfx942:xnack-". Empty for entries of the host.
std::string_view target_of(std::string_view id) {
  if (!consume(id, "hipv4-") && !consume(id, "hip-")) return {};
  const size_t begin = id.find("gfx");
  return begin == std::string_view::npos ? std::string_view{} : id.substr(begin);
}

}  // namespace

Bytes image_at(const void* image) {
  require(image, "the image");
  char magic[kBundleMagic.size()] = {};
  // The shortest magic comes first: an image may be shorter than the longest one.
  read_from_host(magic, image, kCompressedMagic.size(), "the image");
  Bytes head(magic, sizeof magic);
  uint64_t size;
  if (head.starts_with(kCompressedMagic)) refuse_compressed();
  if (is_elf(head)) {
    size = elf_size(image);
  } else {
    read_from_host(magic, image, sizeof magic, "the image");
    if (!head.starts_with(kBundleMagic)) {
      fail(hipErrorInvalidImage, "the image at %p is neither an ELF file nor an offload bundle", image);
    }
    size = bundle_size(image);
  }
  if (!is_readable(image, size)) {
    fail(hipErrorInvalidImage, "its headers describe %llu bytes, which can't all be read at %p: truncated?",
         static_cast<unsigned long long>(size), image);
  }
  return {image, static_cast<size_t>(size)};
}

Bytes code_object_for_device(Bytes image) {
  if (is_elf(image)) return image;
  if (image.starts_with(kCompressedMagic)) refuse_compressed();
  if (!image.starts_with(kBundleMagic)) {
    fail(hipErrorInvalidImage, "the %zu bytes are neither an ELF file nor an offload bundle", image.size());
  }
  const auto count = image.read<uint64_t>(kBundleMagic.size());
  require_sane(count);
  uint64_t at = kBundleMagic.size() + sizeof count;
  Bytes best;
  int best_fit = 0;
  std::string targets;
  for (uint64_t i = 0; i < count; ++i) {
    const auto entry = image.read<EntryHeader>(at);
    require_sane(entry);
    const std::string_view target = target_of(image.text(at + sizeof entry, entry.id_size));
    at += sizeof entry + entry.id_size;
    if (target.empty()) continue;
    targets.append(targets.empty() ? "" : ", ").append(target);
    if (const int this_fit = fit(target); this_fit > best_fit) {
      best = image.slice(entry.offset, entry.size);
      best_fit = this_fit;
    }
  }
  if (best_fit == 0) {
    fail(hipErrorNoBinaryForGpu, "the offload bundle has code for %s, the device is %s",
         targets.empty() ? "no GPU" : targets.c_str(), device::kTarget);
  }
  return best;
}
