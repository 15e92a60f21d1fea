// Where tokens of a paged cache are: look-ups in the block table, and addresses in pages.
#pragma once

#include "deep_gemm_rocm/attention/decode_arguments.h"
#include "deep_gemm_rocm/attention/page_size.h"
#include "deep_gemm_rocm/hardware/buffer.h"
#include "deep_gemm_rocm/hardware/global.h"

namespace deep_gemm_rocm {

// A sequence's length, clamped to what its row of the block table has room for.
DG_DEVICE int existing_tokens(int length, int most_tokens) { return min(max(length, 0), most_tokens); }

// The index of a sequence's length. Mostly each sequence has its own; this saves the division then, which is slow.
DG_DEVICE int length_of_sequence(int sequence, int sequences_of_length) {
  return sequences_of_length == 1 ? sequence : sequence / sequences_of_length;
}

// The length of a sequence, which is uniform.
DG_DEVICE int tokens_of_sequence(const DecodeArguments& args, int sequence) {
  if (args.context_lens == nullptr) return args.most_tokens;
  return existing_tokens(args.context_lens[length_of_sequence(sequence, args.sequences_of_length)], args.most_tokens);
}

// Where a token is in the cache.
struct TokenPlace {
  int page, in_page;
  bool exists;
  bool is_extra = false;  // whether that is the second cache
};

// The cache that holds a lane's token. check_latent_strides() in problems/latent.py ensures that strides are small
// enough for multiplications of 32 and 24 bits, which take an instruction each.
template <int kElementBytes>
class LanePages {
 public:
  DG_DEVICE LanePages(const PagedTensor& tensor, int page_shift)
      : first_(static_cast<const uint8_t*>(tensor.data)),
        page_bytes_(static_cast<unsigned>(tensor.page_stride) * kElementBytes),
        token_bytes_(static_cast<unsigned>(tensor.token_stride) * kElementBytes),
        page_shift_(page_shift) {}

  // Chooses between two caches in each lane.
  static DG_DEVICE LanePages chosen(bool is_second, LanePages first, LanePages second) {
    first.make_scalar();
    second.make_scalar();
    return is_second ? second : first;
  }

  DG_DEVICE const uint8_t* page(const TokenPlace& place) const {
    return first_ + static_cast<uint64_t>(static_cast<unsigned>(place.page)) * page_bytes_;
  }
  DG_DEVICE unsigned offset_in_page(const TokenPlace& place) const {
    constexpr unsigned k24Bits = (1 << 24) - 1;
    return (place.in_page & k24Bits) * (token_bytes_ & k24Bits);
  }
  DG_DEVICE int tokens_of_page() const { return 1 << page_shift_; }

 private:
  // Otherwise the compiler selects the address of an argument, and each lane loads the argument from there.
  DG_DEVICE void make_scalar() {
    asm("" : "+s"(first_), "+s"(page_bytes_), "+s"(token_bytes_), "+s"(page_shift_));
  }

  const uint8_t* first_;
  unsigned page_bytes_;   // less than 2^32 from page to page
  unsigned token_bytes_;  // less than 2^24 from token to token
  int page_shift_;
};

// One sequence's pages. A page is looked up ahead of time, once for a run of neighbouring tokens in it. Tokens past the
// sequence's last one repeat that one, so that loads are in bounds.
template <class PageSize>
class SequencePages {
 public:
  static constexpr bool kInRuns = true;    // whether eight tokens, from a multiple of eight on, are in one page
  static constexpr bool kHasGaps = false;  // whether tokens may be missing before the last one
  static constexpr bool kHasExtra = false;  // whether there is a second cache

  DG_DEVICE SequencePages(const DecodeArguments& args, int sequence, int tokens)
      : table_(args.block_table + sequence * args.block_table_stride),
        page_size_(args.page_shift),
        last_page_(args.num_pages - 1),
        tokens_(tokens) {}

  DG_DEVICE int tokens() const { return tokens_; }

  // The table's entry for a token, unchecked.
  DG_DEVICE int entry_of(int token) const {
    return *(const Global<int>*)(table_ + page_size_.page_of(existing(token)));
  }

  DG_DEVICE int page_of(int token) const { return existing_page(entry_of(token)); }

  // The address of a token's key or value of a head.
  template <class T>
  DG_DEVICE const uint8_t* address(const PagedTensor& tensor, int head, int page, int token) const {
    const int in_page = page_size_.in_page(existing(token));
    const int64_t element = page * tensor.page_stride + in_page * tensor.token_stride + head * tensor.head_stride;
    return static_cast<const uint8_t*>(tensor.data) + element * static_cast<int64_t>(sizeof(T));
  }

  // The address of the next token in the same page, given that of `token`.
  template <class T>
  DG_DEVICE const uint8_t* next_address(const PagedTensor& tensor, const uint8_t* address, int token) const {
    const int64_t stride = tensor.token_stride * static_cast<int64_t>(sizeof(T));
    return address + (token + 1 < tokens_ ? stride : 0);
  }

  // Keys of a run of neighbouring tokens in one page, of table entry `entry`. Arguments are uniform. Tokens past the
  // sequence's last one aren't in the buffer.
  DG_DEVICE Buffer run(const PagedTensor& tensor, int element_bytes, int entry, int first, int tokens,
                       int bytes) const {
    const int existing_tokens = min(tokens, tokens_ - first);
    const int last = (existing_tokens - 1) * static_cast<int>(tensor.token_stride) * element_bytes;
    const TokenPlace place = place_of(entry, first);
    const int64_t element = place.page * tensor.page_stride + place.in_page * tensor.token_stride;
    const auto* const base = static_cast<const uint8_t*>(tensor.data) + element * element_bytes;
    return Buffer{base, static_cast<unsigned>(last + bytes)}.only_if(existing_tokens > 0);
  }

  // Where a token is, given its page's entry in the table.
  DG_DEVICE TokenPlace place_of(int entry, int token) const {
    return {existing_page(entry), page_size_.in_page(existing(token)), token < tokens_};
  }

 private:
  DG_DEVICE int existing(int token) const { return min(token, tokens_ - 1); }
  DG_DEVICE int existing_page(int entry) const { return min(max(entry, 0), last_page_); }

  const int* table_;
  PageSize page_size_;
  int last_page_;
  int tokens_;
};

// The same for pages whose number of tokens isn't a multiple of eight, so that a run may span two pages.
template <class PageSize>
class SmallPages : public SequencePages<PageSize> {
 public:
  using SequencePages<PageSize>::SequencePages;
  static constexpr bool kInRuns = false;
};

// Tokens that a row of slots lists (slot = page · tokens of a page + position in the page). If a slot isn't in the
// cache, the token doesn't exist; the cache's first token is loaded instead, and not used.
class IndexedTokens {
 public:
  static constexpr bool kInRuns = false;
  static constexpr bool kHasGaps = true;
  static constexpr bool kHasExtra = false;

  DG_DEVICE IndexedTokens(const DecodeArguments& args, int sequence, int tokens)
      : slots_(args.block_table + sequence * args.block_table_stride),
        page_shift_(args.page_shift),
        num_slots_(static_cast<unsigned>(args.num_pages) << args.page_shift),
        tokens_(tokens) {}

  DG_DEVICE int tokens() const { return tokens_; }

  DG_DEVICE int entry_of(int token) const { return *(const Global<int>*)(slots_ + min(token, tokens_ - 1)); }

  DG_DEVICE TokenPlace place_of(int slot, int token) const {
    const bool exists = token < tokens_ && static_cast<unsigned>(slot) < num_slots_;
    const int existing = exists ? slot : 0;
    return {existing >> page_shift_, existing & ((1 << page_shift_) - 1), exists};
  }

 private:
  const int* slots_;
  int page_shift_;
  unsigned num_slots_;
  int tokens_;
};

// Tokens that a row of slots lists in one cache, followed by those that another row lists in a second cache, whose
// pages may have another size.
class IndexedTokensOfTwo {
 public:
  static constexpr bool kInRuns = false;
  static constexpr bool kHasGaps = true;
  static constexpr bool kHasExtra = true;

  DG_DEVICE IndexedTokensOfTwo(const DecodeArguments& args, int sequence, int tokens)
      : args_(args),
        slots_(args.block_table + sequence * args.block_table_stride),
        extra_slots_(args.extra.slots + sequence * args.extra.slots_stride),
        page_shift_(args.page_shift),
        extra_page_shift_(args.extra.page_shift),
        num_slots_(static_cast<unsigned>(args.num_pages) << args.page_shift),
        num_extra_slots_(static_cast<unsigned>(args.extra.num_pages) << args.extra.page_shift),
        first_tokens_(tokens_of_sequence(args, sequence)),
        tokens_(tokens) {
    // Kept in SGPRs to select from, see LanePages::make_scalar().
    asm("" : "+s"(page_shift_), "+s"(extra_page_shift_), "+s"(num_slots_), "+s"(num_extra_slots_));
  }

  DG_DEVICE int tokens() const { return tokens_; }

  DG_DEVICE int entry_of(int token) const {
    const int existing = min(token, tokens_ - 1);
    const int* const slot =
        existing < first_tokens_ ? slots_ + existing : extra_slots_ + (existing - first_tokens_);
    return *(const Global<int>*)slot;
  }

  DG_DEVICE TokenPlace place_of(int slot, int token) const {
    const bool is_extra = min(token, tokens_ - 1) >= first_tokens_;
    const int page_shift = is_extra ? extra_page_shift_ : page_shift_;
    const bool exists = token < tokens_ && static_cast<unsigned>(slot) < (is_extra ? num_extra_slots_ : num_slots_);
    const int existing = exists ? slot : 0;
    return {existing >> page_shift, existing & ((1 << page_shift) - 1), exists, is_extra};
  }

  DG_DEVICE const PagedTensor& extra_cache() const { return args_.extra.cache; }
  DG_DEVICE int extra_page_shift() const { return extra_page_shift_; }

 private:
  const DecodeArguments& args_;
  const int* slots_;
  const int* extra_slots_;
  int page_shift_, extra_page_shift_;
  unsigned num_slots_, num_extra_slots_;
  int first_tokens_;
  int tokens_;
};

}  // namespace deep_gemm_rocm
