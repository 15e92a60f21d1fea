#include "code_object.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "../base/status.h"
#include "../device/device.h"
#include "../launch/engine_library.h"
#include "../memory/memory_map.h"
#include "elf_file.h"
#include "msgpack.h"

namespace {

// AMDGPUUsage, "Header", e_flags.
constexpr uint32_t kProcessorMask = 0xff;
constexpr uint32_t kProcessorGfx942 = 0x4c;
constexpr uint32_t kProcessorGfx94Generic = 0x5f;
constexpr uint32_t kXnackMask = 0x300, kXnackOn = 0x300;
constexpr uint32_t kSramEccMask = 0xc00, kSramEccOff = 0x800;

constexpr uint32_t kMetadataNote = 32;  // AMDGPUUsage, NT_AMDGPU_METADATA

// AMDGPUUsage, "Relocation Records".
enum Relocation : uint32_t {
  kNone = 0,
  kAbs32Lo = 1,
  kAbs32Hi = 2,
  kAbs64 = 3,
  kRel32 = 4,
  kRel64 = 5,
  kAbs32 = 6,
  kRel32Lo = 10,
  kRel32Hi = 11,
  kRelative64 = 13,
};

// Far above any real code object, and small enough that a damaged one can't exhaust the address space.
constexpr uint64_t kMaxImageBytes = 16ull << 30;
constexpr uint64_t kMaxKernargBytes = 64 << 10;

// AMDGPUUsage, "Kernel Descriptor".
struct KernelDescriptor {
  uint32_t group_segment_fixed_size;
  uint32_t private_segment_fixed_size;
  uint32_t kernarg_size;
  uint8_t reserved0[4];
  int64_t kernel_code_entry_byte_offset;
  uint8_t reserved1[20];
  uint32_t compute_pgm_rsrc3;
  uint32_t compute_pgm_rsrc1;
  uint32_t compute_pgm_rsrc2;
  uint16_t kernel_code_properties;
  uint16_t kernarg_preload;
  uint8_t reserved2[4];
};
static_assert(sizeof(KernelDescriptor) == 64);

unsigned long long printable(uint64_t value) { return value; }

uint64_t page_size() {
  static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

void require_target(uint32_t flags, const msgpack::Value& metadata) {
  const uint32_t processor = flags & kProcessorMask;
  const bool right_processor = processor == kProcessorGfx942 || processor == kProcessorGfx94Generic;
  if (right_processor && (flags & kXnackMask) != kXnackOn && (flags & kSramEccMask) != kSramEccOff) return;
  const msgpack::Value* target = metadata.find("amdhsa.target");
  fail(hipErrorNoBinaryForGpu, "the code object is for %s (ELF flags %#x), the device is %s",
       target ? target->text("amdhsa.target").c_str() : "another target", flags, device::kTarget);
}

const msgpack::Value& field(const msgpack::Value& map, const char* name) {
  const msgpack::Value* value = map.find(name);
  if (!value) fail(hipErrorInvalidImage, "metadata: a kernel or an argument without %s", name);
  return *value;
}

uint32_t uint32_field(const msgpack::Value& map, const char* name) {
  const uint64_t value = field(map, name).unsigned_integer(name);
  if (value > UINT32_MAX) fail(hipErrorInvalidImage, "metadata: %s is %llu", name, printable(value));
  return static_cast<uint32_t>(value);
}

uint32_t uint32_field_or(const msgpack::Value& map, const char* name, uint32_t missing) {
  return map.find(name) ? uint32_field(map, name) : missing;
}

ArgumentKind argument_kind(const std::string& name) {
#define KERNEL_ARGUMENT_LOOKUP(kind) \
  if (name == #kind) return ArgumentKind::kind;
  KERNEL_ARGUMENT_KINDS(KERNEL_ARGUMENT_LOOKUP)
#undef KERNEL_ARGUMENT_LOOKUP
  fail(hipErrorInvalidImage, "metadata: %s is no .value_kind that the simulated MI300X knows", name.c_str());
}

std::vector<KernelArgument> read_arguments(const msgpack::Value& kernel, uint32_t kernarg_bytes) {
  std::vector<KernelArgument> arguments;
  const msgpack::Value* list = kernel.find(".args");
  if (!list) return arguments;
  for (const msgpack::Value& entry : list->array(".args")) {
    const msgpack::Value* name = entry.find(".name");
    const KernelArgument argument{argument_kind(field(entry, ".value_kind").text(".value_kind")),
                                  uint32_field(entry, ".offset"), uint32_field(entry, ".size"),
                                  name ? name->text(".name") : std::string()};
    if (uint64_t{argument.offset} + argument.size > kernarg_bytes) {
      fail(hipErrorInvalidImage, "metadata: an argument at %u of %u bytes in a kernarg segment of %u", argument.offset,
           argument.size, kernarg_bytes);
    }
    if (argument.is_hidden() && argument.kind != ArgumentKind::hidden_none && argument.size > sizeof(uint64_t)) {
      fail(hipErrorInvalidImage, "metadata: a hidden argument of %u bytes", argument.size);
    }
    arguments.push_back(argument);
  }
  return arguments;
}

// The kernel according to its metadata. The caller fills in what comes from the descriptor.
KernelInfo read_kernel(const msgpack::Value& metadata) {
  KernelInfo kernel;
  kernel.name = field(metadata, ".name").text(".name");
  const uint32_t kernarg_bytes = uint32_field(metadata, ".kernarg_segment_size");
  if (kernarg_bytes > kMaxKernargBytes) fail(hipErrorInvalidImage, "a kernarg segment of %u bytes", kernarg_bytes);
  if (const uint32_t wave = uint32_field_or(metadata, ".wavefront_size", device::kWaveSize);
      wave != device::kWaveSize) {
    fail(hipErrorInvalidImage, "kernel %s has waves of %u lanes, gfx942 has %d", kernel.name.c_str(), wave,
         device::kWaveSize);
  }
  kernel.descriptor.kernarg_bytes = kernarg_bytes;
  kernel.arguments = read_arguments(metadata, kernarg_bytes);
  kernel.max_block_threads = uint32_field_or(metadata, ".max_flat_workgroup_size", device::kMaxBlockThreads);
  kernel.vgprs = uint32_field_or(metadata, ".vgpr_count", 0);
  if (const msgpack::Value* required = metadata.find(".reqd_workgroup_size")) {
    const msgpack::Array& extents = required->array(".reqd_workgroup_size");
    if (extents.size() != 3) fail(hipErrorInvalidImage, ".reqd_workgroup_size of %zu extents", extents.size());
    for (int i = 0; i < 3; ++i) {
      kernel.required_block[i] = static_cast<uint32_t>(extents[i].unsigned_integer(".reqd_workgroup_size"));
    }
  }
  if (const msgpack::Value* dynamic = metadata.find(".uses_dynamic_stack")) {
    kernel.uses_dynamic_stack = dynamic->boolean(".uses_dynamic_stack");
  }
  return kernel;
}

}  // namespace

uint32_t KernelInfo::explicit_kernarg_bytes() const {
  uint32_t end = 0;
  for (const KernelArgument& argument : arguments) {
    if (!argument.is_hidden()) end = std::max(end, argument.offset + argument.size);
  }
  return end;
}

CodeObject::Image::~Image() {
  if (base_) munmap(reinterpret_cast<void*>(base_), size_);
}

void CodeObject::Image::map(uint64_t address, uint64_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(hipErrorOutOfMemory, "no address space for %llu bytes of code", printable(size));
  base_ = reinterpret_cast<uint64_t>(memory);
  address_ = address;
  size_ = size;
}

CodeObject::CodeObject(Bytes file) {
  const ElfFile elf(file);
  std::vector<msgpack::Value> metadata;
  for (const Bytes note : elf.notes("AMDGPU", kMetadataNote)) metadata.push_back(msgpack::parse(note));
  require_target(elf.flags(), metadata.front());
  load_segments(elf);
  apply_relocations(elf);
  read_symbols(elf);
  for (const msgpack::Value& part : metadata) read_kernels(part);
  register_data();
}

CodeObject::~CodeObject() {
  for (const Segment& segment : segments_) {
    const auto begin = reinterpret_cast<uint64_t>(image_.host(segment.address));
    if (segment.executable) {
      forget_code(begin, begin + segment.size);
    } else {
      MemoryMap::instance().remove(begin, MemoryKind::module);
    }
  }
}

const KernelInfo* CodeObject::find_kernel(const std::string& name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : &found->second;
}

const GlobalVariable* CodeObject::find_global(const std::string& name) const {
  const auto found = globals_.find(name);
  return found == globals_.end() ? nullptr : &found->second;
}

void CodeObject::place_managed_variables() {
  for (const auto& [name, memory] : globals_) {
    const size_t length = name.rfind(".managed");
    if (length == std::string::npos || length + std::strlen(".managed") != name.size()) continue;
    const auto pointer = globals_.find(name.substr(0, length));
    if (pointer == globals_.end() || pointer->second.size != sizeof(void*)) continue;
    std::memcpy(pointer->second.address, &memory.address, sizeof(void*));
    pointer->second = memory;
  }
}

std::string CodeObject::some_kernel_names() const {
  constexpr size_t most = 8, longest = 100;
  std::string names;
  size_t count = 0;
  for (const auto& [name, kernel] : kernels_) {
    if (++count > most) return names + " and " + std::to_string(kernels_.size() - most) + " more";
    names.append(names.empty() ? "" : ", ").append(name, 0, longest);
  }
  return names.empty() ? "none" : names;
}

void CodeObject::load_segments(const ElfFile& elf) {
  std::vector<Elf64_Phdr> headers;
  for (const Elf64_Phdr& header : elf.segments()) {
    if (header.p_type == PT_LOAD && header.p_memsz > 0) headers.push_back(header);
  }
  if (headers.empty()) fail(hipErrorInvalidImage, "nothing to load");
  std::sort(headers.begin(), headers.end(),
            [](const Elf64_Phdr& a, const Elf64_Phdr& b) { return a.p_vaddr < b.p_vaddr; });
  for (const Elf64_Phdr& header : headers) {
    uint64_t end;
    if (header.p_filesz > header.p_memsz || __builtin_add_overflow(header.p_vaddr, header.p_memsz, &end)) {
      fail(hipErrorInvalidImage, "a segment at %#llx with %llu bytes in the file and %llu in memory",
           printable(header.p_vaddr), printable(header.p_filesz), printable(header.p_memsz));
    }
    if (!segments_.empty() && header.p_vaddr < segments_.back().end()) {
      fail(hipErrorInvalidImage, "the segments at %#llx and %#llx overlap", printable(segments_.back().address),
           printable(header.p_vaddr));
    }
    segments_.push_back({header.p_vaddr, header.p_memsz, (header.p_flags & PF_X) != 0});
  }

  // Starts on a page, so that the code keeps the alignment that its addresses have in the file.
  const uint64_t begin = segments_.front().address / page_size() * page_size();
  const uint64_t size = segments_.back().end() - begin;
  if (size > kMaxImageBytes) fail(hipErrorInvalidImage, "it takes %llu bytes of memory", printable(size));
  image_.map(begin, size);
  for (const Elf64_Phdr& header : headers) {
    const Bytes contents = elf.contents(header);
    if (contents.size() > 0) std::memcpy(image_.host(header.p_vaddr), contents.data(), contents.size());
  }
}

void CodeObject::apply_relocations(const ElfFile& elf) {
  for (const Elf64_Shdr& section : elf.sections()) {
    if (section.sh_type == SHT_REL && (section.sh_flags & SHF_ALLOC)) {
      fail(hipErrorInvalidImage, "relocations without addends, which AMD GPUs don't have");
    }
    if (section.sh_type != SHT_RELA || !(section.sh_flags & SHF_ALLOC)) continue;
    const SymbolTable symbols(elf, elf.linked(section));
    const Bytes table = elf.contents(section);

    for (uint64_t at = 0; at + sizeof(Elf64_Rela) <= table.size(); at += sizeof(Elf64_Rela)) {
      const auto relocation = table.read<Elf64_Rela>(at);
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
      if (type == kNone) continue;
      const bool is_64_bit = type == kAbs64 || type == kRel64 || type == kRelative64;
      uint8_t* place = host_at(relocation.r_offset, is_64_bit ? 8 : 4, "a relocation");
      const auto addend = static_cast<uint64_t>(relocation.r_addend);
      const auto base = reinterpret_cast<uint64_t>(image_.host(0));
      const auto symbol_value = [&]() -> uint64_t {
        const Elf64_Sym symbol = symbols.at(ELF64_R_SYM(relocation.r_info));
        if (symbol.st_shndx != SHN_UNDEF) return base + symbol.st_value;
        if (ELF64_ST_BIND(symbol.st_info) == STB_WEAK) return 0;
        fail(hipErrorSharedObjectSymbolNotFound, "the code object needs the symbol %s, which it does not define",
             symbols.name(symbol).c_str());
      };
      const auto place_address = reinterpret_cast<uint64_t>(place);
      uint64_t value;
      switch (type) {
        case kRelative64: value = base + addend; break;
        case kAbs64:
        case kAbs32:
        case kAbs32Lo: value = symbol_value() + addend; break;
        case kAbs32Hi: value = (symbol_value() + addend) >> 32; break;
        case kRel64:
        case kRel32:
        case kRel32Lo: value = symbol_value() + addend - place_address; break;
        case kRel32Hi: value = (symbol_value() + addend - place_address) >> 32; break;
        default: fail(hipErrorInvalidImage, "relocation type %u", type);
      }
      std::memcpy(place, &value, is_64_bit ? 8 : 4);
    }
  }
}

void CodeObject::read_symbols(const ElfFile& elf) {
  for (const Elf64_Shdr& section : elf.sections()) {
    if (section.sh_type != SHT_DYNSYM) continue;
    const SymbolTable symbols(elf, section);
    for (size_t i = 0; i < symbols.count(); ++i) {
      const Elf64_Sym symbol = symbols.at(i);
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
      uint8_t* address = host_at(symbol.st_value, symbol.st_size, "a variable");
      globals_.emplace(symbols.name(symbol), GlobalVariable{address, static_cast<size_t>(symbol.st_size)});
    }
  }
}

void CodeObject::read_kernels(const msgpack::Value& metadata) {
  const msgpack::Value* kernels = metadata.find("amdhsa.kernels");
  if (!kernels) return;
  for (const msgpack::Value& entry : kernels->array("amdhsa.kernels")) {
    KernelInfo kernel = read_kernel(entry);
    const std::string& symbol = field(entry, ".symbol").text(".symbol");
    const GlobalVariable* variable = find_global(symbol);
    if (!variable || variable->size < sizeof(KernelDescriptor)) {
      fail(hipErrorInvalidImage, "no kernel descriptor named %s", symbol.c_str());
    }
    KernelDescriptor descriptor;
    std::memcpy(&descriptor, variable->address, sizeof descriptor);

    const uint64_t entry_address =
        image_.file_address(variable->address) + static_cast<uint64_t>(descriptor.kernel_code_entry_byte_offset);
    const Segment* code = segment_of(entry_address, sizeof(uint32_t));
    if (!code || !code->executable || entry_address % 256 != 0) {
      fail(hipErrorInvalidImage, "kernel %s begins at %#llx, which is not 256-byte aligned code", kernel.name.c_str(),
           printable(entry_address));
    }
    kernel.descriptor.entry = reinterpret_cast<uint64_t>(image_.host(entry_address));
    kernel.descriptor.code_begin = reinterpret_cast<uint64_t>(image_.host(code->address));
    kernel.descriptor.code_end = kernel.descriptor.code_begin + code->size;
    kernel.descriptor.lds_bytes = descriptor.group_segment_fixed_size;
    kernel.descriptor.scratch_bytes = descriptor.private_segment_fixed_size;
    kernel.descriptor.compute_pgm_rsrc1 = descriptor.compute_pgm_rsrc1;
    kernel.descriptor.compute_pgm_rsrc2 = descriptor.compute_pgm_rsrc2;
    kernel.descriptor.compute_pgm_rsrc3 = descriptor.compute_pgm_rsrc3;
    kernel.descriptor.kernel_code_properties = descriptor.kernel_code_properties;
    kernel.descriptor.kernarg_preload = descriptor.kernarg_preload;

    const std::string name = kernel.name;
    const auto [place, is_new] = kernels_.emplace(name, std::move(kernel));
    if (!is_new) fail(hipErrorInvalidImage, "two kernels named %s", name.c_str());
    place->second.descriptor.name = place->second.name.c_str();
  }
}

void CodeObject::register_data() {
  for (const Segment& segment : segments_) {
    if (segment.executable) continue;
    MemoryMap::instance().add(reinterpret_cast<uint64_t>(image_.host(segment.address)), segment.size,
                              MemoryKind::module);
  }
}

const CodeObject::Segment* CodeObject::segment_of(uint64_t address, uint64_t size) const {
  for (const Segment& segment : segments_) {
    if (address >= segment.address && address <= segment.end() && size <= segment.end() - address) return &segment;
  }
  return nullptr;
}

uint8_t* CodeObject::host_at(uint64_t address, uint64_t size, const char* what) const {
  if (!segment_of(address, size)) {
    fail(hipErrorInvalidImage, "%s at %#llx of %llu bytes is outside of the loaded segments", what, printable(address),
         printable(size));
  }
  return image_.host(address);
}
