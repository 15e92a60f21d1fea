// Logits of the sparse-attention indexer: for each query and key, the sum over heads of weight · max(q · k, 0), times
// the key's scale.
//
// Heads are the rows of the MFMA's result and keys the columns, so a lane adds up half the heads of one key. A wave
// holds its keys in registers and goes through the queries.
#pragma once

#include "deep_gemm_rocm/arithmetic/rounding.h"
#include "deep_gemm_rocm/attention/paged_logits_schedule.h"
#include "deep_gemm_rocm/loading/fragment.h"
#include "deep_gemm_rocm/hardware/global.h"
#include "deep_gemm_rocm/hardware/static_for.h"
#include "deep_gemm_rocm/hardware/wave.h"

namespace deep_gemm_rocm {

// Queries and keys are FP8 (e4m3); strides are in elements. MqaLogitsArguments in launch/mqa_logits.py is the same.
struct MqaLogitsArguments {
  const uint8_t* q;         // [queries, heads, head dim], contiguous but for the queries
  const uint8_t* keys;      // [keys, head dim]
  const float* key_scales;  // [keys]
  const float* weights;     // [queries, heads], contiguous heads
  const int* begin;         // [queries], the first key that a query sees
  const int* end;
  void* logits;             // float or bf16 [queries, keys]; compressed, column 0 is the first key that the query sees
  int64_t q_stride, key_stride, weights_stride, logits_stride;
  int num_queries, num_keys;
  int clean;                // whether -inf is written where a query sees no key
  int compressed_columns;   // columns of compressed logits; 0 if they aren't compressed
  int has_bf16_logits;
  int workgroup_queries;    // up to kWaveSize
};

// The same for the last `next_n` tokens of each sequence. Keys are in pages: all values of a page, then its scales.
struct PagedMqaLogitsArguments {
  const uint8_t* q;         // [batch · next_n, heads, head dim]
  const uint8_t* cache;
  const float* weights;     // [batch · next_n, heads]
  const int* context_lens;  // [batch, next_n], the keys that a query sees; or [batch], tokens including the last ones
  const int* block_table;
  const int* schedule;      // [workgroups + 1, 2], the sequence and the segment of its keys where each begins; or null
  void* logits;             // float or bf16 [batch · next_n, columns]
  int64_t q_stride, page_bytes, weights_stride, block_table_stride, logits_stride;
  int batch, next_n, per_query_lens;
  int num_pages, pages_of_sequence, page_shift, columns;
  int num_workgroups;       // of the launch
  int clean;                // whether -inf is written where a query sees no key
  int has_bf16_logits;
};

constexpr int kMqaWaves = 4;

template <int kHeads_, int kHeadDim_>
struct MqaShape {
  using Mfma = deep_gemm_rocm::Mfma<E4M3, E4M3, 32>;
  static constexpr int kHeads = kHeads_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeadFragments = ceil_div(kHeads, Mfma::kRows);
  static constexpr int kReadBytes = kChunkBytes * Mfma::kLaneGroups;
  static constexpr int kReads = kHeadDim / kReadBytes;
  static_assert(kReads * kReadBytes == kHeadDim);
};

// 2 · max(score, 0), as score + |score|: one instruction, exact, and NaN stays NaN. MqaKeys::logit() halves the sum.
DG_DEVICE float twice_positive(float score) { return score + __builtin_fabsf(score); }

// The part of a query's heads that a lane holds as MFMA operands, and the weights of the scores that it gets.
template <class Shape>
class MqaQuery {
  using Mfma = typename Shape::Mfma;

 public:
  static constexpr int kParts = Shape::kHeadFragments * Mfma::kElements / 4;

  DG_DEVICE void load(const uint8_t* q, const float* weights) {
    static_for<kParts>([&](auto part) { load_part<part>(q, weights); });
  }

  // Loads one of kParts equal parts: four weights, and up to one pair of operands.
  template <int kPart>
  DG_DEVICE void load_part(const uint8_t* q, const float* weights) {
    constexpr int kPartsOfFragment = kParts / Shape::kHeadFragments;
    constexpr int kFragment = kPart / kPartsOfFragment;
    constexpr int kPlace = kPart % kPartsOfFragment;
    const int lane = lane_id() % Mfma::kRows;
    const int group = lane_id() / Mfma::kRows;
    if constexpr (kPlace < Shape::kReads) {
      const uint8_t* const head = q + existing(kFragment * Mfma::kRows + lane) * Shape::kHeadDim + group * kChunkBytes;
      operands_[kFragment][kPlace] = load_global<MfmaOperands>(head + kPlace * Shape::kReadBytes);
    }
    static_for<4>([&](auto i) {
      constexpr int kElement = kPlace * 4 + decltype(i)::value;
      const int row = kFragment * Mfma::kRows + Mfma::row_of_element(group, kElement);
      const float weight = *(const Global<float>*)(weights + existing(row));
      weights_[kFragment][kElement] = existing(row) == row ? weight : 0;
    });
  }

  // Twice the sum over the lane group's heads, for the lane's key. Calls before(fragment) for each fragment of heads.
  template <class Before>
  DG_DEVICE float partial_logit(const MfmaOperands (&key)[Shape::kReads], Before&& before) const {
    Float2 sums = 0;
    static_for<Shape::kHeadFragments>([&](auto fragment) {
      before(fragment);
      typename Mfma::Accumulator scores = 0;
#pragma unroll
      for (int i = 0; i < 2 * Shape::kReads; ++i) {
        scores = Mfma::multiply_add(operands_[fragment][i / 2][i % 2], key[i / 2][i % 2], scores);
      }
#pragma unroll
      for (int e = 0; e < Mfma::kElements; e += 2) {
        const Float2 positive = {twice_positive(scores[e]), twice_positive(scores[e + 1])};
        const Float2 weight = {weights_[fragment][e], weights_[fragment][e + 1]};
        sums = __builtin_elementwise_fma(weight, positive, sums);
      }
    });
    return sums[0] + sums[1];
  }

 private:
  // Rows past the last head repeat it, with weight 0.
  static DG_DEVICE int existing(int head) {
    return Shape::kHeads % Mfma::kRows == 0 ? head : min(head, Shape::kHeads - 1);
  }

  MfmaOperands operands_[Shape::kHeadFragments][Shape::kReads];
  float weights_[Shape::kHeadFragments][Mfma::kElements];
};

// 64 keys in two fragments, one for each lane. A lane gets partial logits of one key of each fragment; the two lane
// groups exchange these, so that each lane has the logit of one key.
template <class Shape>
class MqaKeys {
  using Mfma = typename Shape::Mfma;

 public:
  static constexpr int kCount = 2 * Mfma::kRows;

  // The chunks of key i start at address_of(i) and are kStride bytes apart. Its scale is at scale_of(i). Keys past
  // `last` repeat that one.
  template <int kStride = kChunkBytes, class AddressOf, class ScaleOf>
  DG_DEVICE void load(int last, AddressOf&& address_of, ScaleOf&& scale_of) {
    const int group = lane_id() / Mfma::kRows;
#pragma unroll
    for (int fragment = 0; fragment < 2; ++fragment) {
      const uint8_t* const key = address_of(min(fragment * Mfma::kRows + lane_id() % Mfma::kRows, last));
#pragma unroll
      for (int read = 0; read < Shape::kReads; ++read) {
        const int chunk = group + read * Mfma::kLaneGroups;
        keys_[fragment][read] = load_global<MfmaOperands>(key + chunk * kStride);
      }
    }
    scale_ = load_global<float>(scale_of(min(lane_id(), last)));
  }

  // The logit of key number lane_id(). Calls before(i) before the i-th product of a fragment of heads and one of keys.
  template <class Before>
  DG_DEVICE float logit(const MqaQuery<Shape>& query, Before&& before) const {
    float sums[2];
    static_for<2>([&](auto i) {
      sums[i] = query.partial_logit(keys_[i], [&](auto fragment) {
        before(Index<decltype(i)::value * Shape::kHeadFragments + decltype(fragment)::value>{});
      });
    });
    const bool second = lane_id() >= Mfma::kRows;
    const float own = second ? sums[1] : sums[0];
    const float others = second ? sums[0] : sums[1];
    return (own + exchanged<Mfma::kRows>(others)) * 0.5f * scale_;
  }

 private:
  MfmaOperands keys_[2][Shape::kReads];
  float scale_;
};

template <class Arguments>
DG_DEVICE void store_logit(const Arguments& args, int64_t element, float logit) {
  if (args.has_bf16_logits) {
    *((Global<__bf16>*)args.logits + element) = rounded_to<__bf16>(logit);
  } else {
    *((Global<float>*)args.logits + element) = logit;
  }
}

// Computes a wave's logits: kBlocks times 64 keys by up to 64 neighbouring queries. Registers hold two times up to 64
// heads, so that one is loaded while the other is multiplied. A query with more heads is taken in kQueryParts parts of
// up to 64, one after the other. Shape is that of a part.
template <class Shape, int kBlocks, int kQueryParts>
class MqaLogits {
  using Keys = MqaKeys<Shape>;
  using Query = MqaQuery<Shape>;

 public:
  static constexpr int kMostQueries = kWaveSize;  // lane i holds which keys query i sees

  DG_DEVICE MqaLogits(const MqaLogitsArguments& args, int first_query, int first_key)
      : args_(args), first_query_(first_query), first_key_(first_key) {
    const int query = min(first_query + lane_id(), args.num_queries - 1);
    begin_ = min(max(load_global<int>(reinterpret_cast<const uint8_t*>(args.begin + query)), 0), args.num_keys);
    end_ = min(load_global<int>(reinterpret_cast<const uint8_t*>(args.end + query)), args.num_keys);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int key = min(first_key + block * Keys::kCount, args.num_keys - 1);
      keys_[block].load(
          args.num_keys - 1 - key, [&](int i) { return args.keys + (key + i) * args.key_stride; },
          [&](int i) { return reinterpret_cast<const uint8_t*>(args.key_scales + key + i); });
    }
  }

  // Double buffering: one part of a query is loaded while the part before it is multiplied.
  DG_DEVICE void run(int count) {
    const int parts = count * kQueryParts;
    Query even, odd;
    even.load(heads_of(0), weights_of(0));
    for (int i = 0; i < parts; i += 2) {
      yield_to_slower_waves(i, parts);
      compute<0>(even, i, odd, min(i + 1, parts - 1));
      if (i + 1 < parts) compute<kQueryParts - 1>(odd, i + 1, even, min(i + 2, parts - 1));
    }
  }

 private:
  static constexpr int kProducts = 2 * Shape::kHeadFragments;  // of a block
  static_assert(kBlocks * kProducts == Query::kParts);
  static_assert(kQueryParts == 1 || kQueryParts == 2);

  // The matrix cores serve the older of a SIMD's two waves first. It would finish early, and leave the other one alone
  // with half of its work. So a wave lowers its priority as it gets on.
  static DG_DEVICE void yield_to_slower_waves(int i, int count) {
    static_for<4>([&](auto quarter) {
      const int begin = count * quarter / 4 & ~1;
      if (i == begin) __builtin_amdgcn_s_setprio(3 - decltype(quarter)::value);
    });
  }

  DG_DEVICE const uint8_t* heads_of(int i) const {
    return args_.q + (first_query_ + i / kQueryParts) * args_.q_stride +
           i % kQueryParts * (Shape::kHeads * Shape::kHeadDim);
  }
  DG_DEVICE const float* weights_of(int i) const {
    return args_.weights + (first_query_ + i / kQueryParts) * args_.weights_stride + i % kQueryParts * Shape::kHeads;
  }

  // Multiplies a part of a query, while the next one is loaded. Stores logits after the last part.
  template <int kPart>
  DG_DEVICE void compute(const Query& query, int i, Query& next, int next_i) {
    const int row = i / kQueryParts;
    const int begin = read_lane(begin_, row);
    const int end = read_lane(end_, row);
    const bool any = begin < first_key_ + kBlocks * Keys::kCount && end > first_key_ && begin < end;
    const uint8_t* const q = heads_of(next_i);
    const float* const weights = weights_of(next_i);
    if (any) {
      static_for<kBlocks>([&](auto block) {
        const float logit = keys_[block].logit(query, [&](auto product) {
          // Keeps loads spread between products. Issued all at once, they would queue up, and matrix cores would idle.
          constexpr int kMemoryStays = 0xf;
          __builtin_amdgcn_sched_barrier(kMemoryStays);
          next.template load_part<decltype(block)::value * kProducts + decltype(product)::value>(q, weights);
        });
        logits_[block] = kPart == 0 ? logit : logits_[block] + logit;
      });
    } else {
      next.load(q, weights);
    }
    if (kPart == kQueryParts - 1 && (any || args_.clean)) store(first_query_ + row, begin, any ? end : begin);
  }

  // Stores the logits of the keys that a query sees, and -inf for others.
  DG_DEVICE void store(int64_t row, int begin, int end) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int key = first_key_ + block * Keys::kCount + lane_id();
      const bool seen = key >= begin && key < end;
      const int column = args_.compressed_columns ? key - begin : key;
      const int columns = args_.compressed_columns ? args_.compressed_columns : args_.num_keys;
      if ((seen || args_.clean) && column < columns) {
        store_logit(args_, row * args_.logits_stride + column, seen ? logits_[block] : -__builtin_inff());
      }
    }
  }

  const MqaLogitsArguments& args_;
  int first_query_;
  int first_key_;
  int begin_;  // lane i: the keys that query i sees
  int end_;
  Keys keys_[kBlocks];
  float logits_[kBlocks];
};

// Two teams of four waves take alternate segments, so that one loads keys while the other multiplies.
constexpr int kPagedMqaTeams = 2;
constexpr int kPagedMqaWaves = kPagedMqaTeams * kMqaWaves;

// How many keys the i-th of a sequence's last next_n tokens sees. A negative number means none, too.
DG_DEVICE int keys_seen(const PagedMqaLogitsArguments& args, int sequence, int i) {
  const int tokens = args.per_query_lens ? args.context_lens[sequence * args.next_n + i]
                                         : args.context_lens[sequence] - args.next_n + 1 + i;
  return min(tokens, min(args.pages_of_sequence << args.page_shift, args.columns));
}

// Where keys are in their page: rows, one key after another.
template <int kHeadDim>
struct KeysInRows {
  static constexpr int kChunkStride = kChunkBytes;
  static DG_DEVICE int offset(int place) { return place * kHeadDim; }
};

// The same for keys in tiles, [tokens / 16, head dim / 16, 16, 16].
template <int kHeadDim>
struct KeysInTiles {
  static constexpr int kTile = 16;  // keys
  static constexpr int kChunkStride = kTile * kChunkBytes;
  static DG_DEVICE int offset(int place) { return place / kTile * kTile * kHeadDim + place % kTile * kChunkBytes; }
};

// Computes a wave's paged logits. From segment to segment of a sequence, it keeps the sequence's limits and first
// queries in registers.
template <class Shape, class Order>
class PagedMqaLogits {
  using Keys = MqaKeys<Shape>;
  // Queries in registers. With two, one is loaded while the other is multiplied.
  static constexpr int kBuffers = Shape::kHeadFragments <= 2 ? 2 : 1;

 public:
  DG_DEVICE explicit PagedMqaLogits(const PagedMqaLogitsArguments& args) : args_(args) {}

  // The largest number of keys that any of the sequence's tokens sees.
  DG_DEVICE int most() const { return most_; }

  // Switches to a sequence; does nothing if it is the current one.
  DG_DEVICE void start(int sequence) {
    if (sequence == sequence_) return;
    sequence_ = sequence;
    limits_ = keys_seen(args_, sequence, min(lane_id(), args_.next_n - 1));
    has_queries_ = false;
    most_ = 0;
    for (int i = 0; i < args_.next_n; ++i) most_ = max(most_, read_lane(limits_, i));
  }

  // Computes the logits of the sequence's tokens for 64 keys, which may span several pages.
  DG_DEVICE void run(int first_key) {
    const int page_keys = 1 << args_.page_shift;
    const auto page_of = [&](int i) {
      const int* const pages = args_.block_table + sequence_ * args_.block_table_stride;
      const int named = *(const Global<int>*)(pages + ((first_key + i) >> args_.page_shift));
      return args_.cache + min(max(named, 0), args_.num_pages - 1) * args_.page_bytes;
    };
    const auto place_of = [&](int i) { return (first_key + i) & (page_keys - 1); };
    Keys keys;
    keys.template load<Order::kChunkStride>(
        most_ - 1 - first_key, [&](int i) { return page_of(i) + Order::offset(place_of(i)); },
        [&](int i) { return page_of(i) + page_keys * Shape::kHeadDim + place_of(i) * sizeof(float); });
    // Queries are loaded after the keys, which take longer as their pages are looked up first.
    if (!has_queries_) {
      static_for<kBuffers>([&](auto i) {
        if (i < args_.next_n) load_query<i>(i);
      });
      has_queries_ = true;
    }
    for (int first = 0; first < args_.next_n; first += kBuffers) {
      static_for<kBuffers>([&](auto i) {
        const int token = first + i;
        if (token >= args_.next_n) return;
        const float logit = keys.logit(queries_[i], [](auto) {});
        // Few tokens have a buffer each, which they keep. Otherwise the next token's query is loaded into this buffer
        // or, after the last one, that of the first tokens for the next keys.
        if (args_.next_n > kBuffers) load_query<i>(token + kBuffers < args_.next_n ? token + kBuffers : i);
        const int key = first_key + lane_id();
        if (key < read_lane(limits_, token)) store_logit(args_, row_of(token) * args_.logits_stride + key, logit);
      });
    }
  }

 private:
  DG_DEVICE int64_t row_of(int token) const { return sequence_ * static_cast<int64_t>(args_.next_n) + token; }

  template <int kBuffer>
  DG_DEVICE void load_query(int token) {
    const int64_t row = row_of(token);
    queries_[kBuffer].load(args_.q + row * args_.q_stride, args_.weights + row * args_.weights_stride);
  }

  const PagedMqaLogitsArguments& args_;
  int sequence_ = -1;
  int limits_;  // lane i: how many keys token i sees
  int most_;
  bool has_queries_;
  MqaQuery<Shape> queries_[kBuffers];
};

// Writes -inf where queries see no key. Rows are dealt equally to all waves, independently of the schedule.
DG_DEVICE void clean_unseen(const PagedMqaLogitsArguments& args, int workgroup) {
  constexpr int kColumns = 1024;  // of a piece, which a wave cleans
  const unsigned pieces_of_row = ceil_div(args.columns, kColumns);
  const unsigned pieces = args.batch * args.next_n * pieces_of_row;
  for (unsigned piece = workgroup * kPagedMqaWaves + wave_id(); piece < pieces;
       piece += args.num_workgroups * kPagedMqaWaves) {
    const int row = piece / pieces_of_row;
    const int begin = piece % pieces_of_row * kColumns;
    const int end = min(begin + kColumns, args.columns);
    const int seen = keys_seen(args, row / args.next_n, row % args.next_n);
    for (int column = max(begin, seen) + lane_id(); column < end; column += kWaveSize) {
      store_logit(args, row * args.logits_stride + column, -__builtin_inff());
    }
  }
}

struct SegmentPlace {
  int sequence, segment;
};

// Where a workgroup's segments begin, and where they end.
struct SegmentRange {
  SegmentPlace begin, end;
};

// The segments that the schedule gives a workgroup: up to the next workgroup's.
DG_DEVICE SegmentRange scheduled_segments(const PagedMqaLogitsArguments& args, int workgroup) {
  const int* const own = args.schedule + 2 * workgroup;
  // Limits what the schedule says. No sequence has so many segments; with more, the first key's number would overflow.
  constexpr int kMostSegments = __INT_MAX__ / kSegmentKeys;
  return {{max(own[0], 0), min(max(own[1], 0), kMostSegments)}, {min(own[2], args.batch), own[3]}};
}

// Deals the segments if there is no schedule: those of all sequences are laid end to end on a line, which is cut into
// equal pieces. Each wave does this for itself. A lane has the sum of a run of neighbouring sequences.
class SegmentLine {
 public:
  DG_DEVICE explicit SegmentLine(const PagedMqaLogitsArguments& args)
      : args_(args), run_(ceil_div(args.batch, kWaveSize)) {
    int segments = 0;
#pragma unroll 8  // so that several lengths are loaded at once
    for (int i = 0; i < run_; ++i) segments += segments_of(lane_id() * run_ + i);
    ends_ = inclusive_sum(segments);
    length_ = read_lane(ends_, kWaveSize - 1);
  }

  DG_DEVICE SegmentRange piece(int workgroup) const {
    const int segments = ceil_div(length_, args_.num_workgroups);
    return {place_of(workgroup * segments), place_of((workgroup + 1) * segments)};
  }

 private:
  DG_DEVICE int segments_of(int sequence) const {
    int most = 0;
    for (int i = 0; i < args_.next_n && sequence < args_.batch; ++i) most = max(most, keys_seen(args_, sequence, i));
    return ceil_div(most, kSegmentKeys);
  }

  DG_DEVICE SegmentPlace place_of(int position) const {
    if (position >= length_) return {args_.batch, 0};
    int lane = lowest_bit(ballot(ends_ > position));
    int begin = lane == 0 ? 0 : read_lane(ends_, lane - 1);
    int sequence = lane * run_;
    while (run_ > 1) {  // looks at 64 sequences at a time
      const int ends = begin + inclusive_sum(segments_of(sequence + lane_id()));
      if (const uint64_t behind = ballot(ends > position)) {
        lane = lowest_bit(behind);
        begin = lane == 0 ? begin : read_lane(ends, lane - 1);
        sequence += lane;
        break;
      }
      begin = read_lane(ends, kWaveSize - 1);
      sequence += kWaveSize;
    }
    return {sequence, position - begin};
  }

  const PagedMqaLogitsArguments& args_;
  int run_;   // sequences of a lane
  int ends_;  // where the lane's run ends on the line
  int length_;
};

// Computes a wave's logits: 64 keys of each of its team's segments.
template <class Shape, class Order>
DG_DEVICE void paged_mqa_logits(const PagedMqaLogitsArguments& args, int workgroup) {
  const SegmentRange range =
      args.schedule == nullptr ? SegmentLine(args).piece(workgroup) : scheduled_segments(args, workgroup);
  constexpr int kKeys = MqaKeys<Shape>::kCount;  // a wave's part of a segment
  static_assert(kMqaWaves * kKeys == kSegmentKeys);
  auto [sequence, segment] = range.begin;
  const auto [last_sequence, last_segment] = range.end;
  const int team = wave_id() / kMqaWaves;
  PagedMqaLogits<Shape, Order> logits(args);
  int turn = 0;
  while (sequence < last_sequence || (sequence == last_sequence && segment < last_segment && sequence < args.batch)) {
    logits.start(sequence);
    if (segment * kMqaWaves * kKeys >= logits.most()) {
      ++sequence;
      segment = 0;
      continue;
    }
    const int first_key = (segment * kMqaWaves + wave_id() % kMqaWaves) * kKeys;
    ++segment;
    const bool is_own = turn == team;
    turn = (turn + 1) % kPagedMqaTeams;
    if (is_own && first_key < logits.most()) logits.run(first_key);
  }
  if (args.clean) clean_unseen(args, workgroup);
}

}  // namespace deep_gemm_rocm
