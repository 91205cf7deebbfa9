// An LSTM over many rows that share its weights, over all steps of a block of time: some rows go through all steps before the next
// ones do, so that their state, and the weights, stay in the cache and no gate of another row is ever in the way.
//
//   (i, f, g, o) = sum of x_t W + h_{t-1} U + b      i, f, o sigmoid, g tanh
//   c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)
//
// A row that is absent in a step keeps its state and gives zeros. Sums have an order that depends on shapes alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "exp.hpp"
#include "product.hpp"

constexpr int kMostInputs = 2;

struct LstmInput {
    const float* x;       // (steps, rows, in), or (rows, in) where every step has the same
    int64_t in;
    bool same;
    const float* weight;  // (in, 4 hidden)
};

struct Lstm {
    int64_t steps, rows, hidden;
    LstmInput inputs[kMostInputs];
    int num_inputs;
    const float* weight_h;   // (hidden, 4 hidden)
    const float* bias;       // (4 hidden)
    const uint8_t* present;  // (steps, rows), or null: all rows are there
    const float *h, *c;      // (rows, hidden), before the first step
    float* out;              // (steps, rows, hidden)
    float *h_end, *c_end;    // (rows, hidden), after the last step, or null
    float* gates;            // (steps, rows, 4 hidden), kept for the way back, which may write over them, or null

    int64_t width() const { return 4 * hidden; }
};

struct LstmBackward {
    Lstm was;                       // its out, h_end and c_end are not read; without gates these are computed again
    const float* grad;              // (steps, rows, hidden), of out
    const float *grad_h, *grad_c;   // (rows, hidden), of the state after the last step, or null
    float* grad_x[kMostInputs];     // as the inputs, or null; may be some of the columns of the gates, each step where its own are
    int64_t stride_x[kMostInputs];  // from a row of grad_x to the next
    float *grad_h_begin, *grad_c_begin;  // (rows, hidden); may be h and c
    int64_t parts;
    float* sums;                    // (parts, size): over fixed ranges of rows, added in order
    float* sum;                     // (size): gradients of the inputs' weights, of those of h, and of the bias

    int64_t size() const {
        int64_t in = was.hidden + 1;
        for (int k = 0; k < was.num_inputs; ++k) in += was.inputs[k].in;
        return in * was.width();
    }
};

namespace {

constexpr int64_t kLstmRows = 48;  // that go through time together: a multiple of kHigh

[[gnu::always_inline]] inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }
[[gnu::always_inline]] inline float tanh_of(float x) {
    const float e = expm1_of(x < 0.0f ? 2.0f * x : -2.0f * x);  // in (-1, 0]
    const float t = -e / (2.0f + e);
    return x < 0.0f ? -t : t;
}

// Weights of what changes from step to step, inputs and then h, kWide columns after kWide columns; and of what does not.
struct LstmPacked {
    int64_t depth = 0;
    std::unique_ptr<float[]> moving, still[kMostInputs];

    explicit LstmPacked(const Lstm& a) {
        const int64_t panels = panels_of(a.width());
        depth = a.hidden;
        for (int k = 0; k < a.num_inputs; ++k) depth += a.inputs[k].same ? 0 : a.inputs[k].in;
        moving.reset(new float[size_t(panels * depth * kWide)]);
        int64_t at = 0;
        const auto pack = [&](const float* weight, int64_t in, float* to, int64_t stride) {
            for (int64_t p = 0; p < panels; ++p) pack_weight(weight, false, in, a.width(), p, to + p * stride * kWide);
        };
        for (int k = 0; k < a.num_inputs; ++k) {
            const LstmInput& input = a.inputs[k];
            if (input.same) {
                still[k].reset(new float[size_t(panels * input.in * kWide)]);
                pack(input.weight, input.in, still[k].get(), input.in);
            } else {
                pack(input.weight, input.in, moving.get() + at * kWide, depth);
                at += input.in;
            }
        }
        pack(a.weight_h, a.hidden, moving.get() + at * kWide, depth);
    }
};

// What a few rows leave behind on their way: one array a step, `stride` floats apart; 0 where the next step overwrites it.
struct Trail {
    float* at;
    int64_t stride;
    float* operator[](int64_t step) const { return at + step * stride; }
};

[[gnu::always_inline]] inline void lstm_row(float* gate, const float* c_before, float* c, float* h, float* out, int64_t hidden) {
    float *gi = gate, *gf = gate + hidden, *gg = gate + 2 * hidden, *go = gate + 3 * hidden;
#pragma omp simd
    for (int64_t j = 0; j < hidden; ++j) {
        const float i = sigmoid_of(gi[j]), f = sigmoid_of(gf[j]), g = tanh_of(gg[j]), o = sigmoid_of(go[j]);
        const float cell = f * c_before[j] + i * g, state = o * tanh_of(cell);
        gi[j] = i, gf[j] = f, gg[j] = g, go[j] = o;
        c[j] = cell, h[j] = state, out[j] = state;
    }
}

struct LstmRoom {
    std::unique_ptr<float[]> z, given, none;

    LstmRoom(const Lstm& a, int64_t depth)
        : z(new float[size_t(kLstmRows * depth)]), given(new float[size_t(kLstmRows * a.width())]), none(new float[size_t(kLstmRows * a.hidden)]) {}
};

// Rows [begin, end) through all steps. `cells` and `states` begin with what was before the first step.
inline void lstm_rows(const Lstm& a, const LstmPacked& packed, int64_t begin, int64_t end, LstmRoom& room, Trail gates, Trail cells,
                      Trail states, float* out) {
    const int64_t rows = end - begin, hidden = a.hidden, width = a.width(), depth = packed.depth;
    std::copy(a.c + begin * hidden, a.c + end * hidden, cells[0]);
    std::copy(a.h + begin * hidden, a.h + end * hidden, states[0]);
    for (int64_t r = 0; r < rows; ++r) std::copy(a.bias, a.bias + width, room.given.get() + r * width);
    for (int k = 0; k < a.num_inputs; ++k) {
        const LstmInput& input = a.inputs[k];
        if (!input.same) continue;
        const auto row = [&](int64_t r) { return input.x + (begin + r) * input.in; };
        const auto from = [&](int64_t r, int64_t c) -> const float* { return room.given.get() + r * width + c; };
        add_term(row, input.in, width, packed.still[k].get(), 0, rows, from, room.given.get(), width);
    }
    for (int64_t t = 0; t < a.steps; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
            float* z = room.z.get() + r * depth;
            for (int k = 0; k < a.num_inputs; ++k) {
                const LstmInput& input = a.inputs[k];
                if (input.same) continue;
                const float* x = input.x + (t * a.rows + begin + r) * input.in;
                z = std::copy(x, x + input.in, z);
            }
            std::copy(states[t] + r * hidden, states[t] + (r + 1) * hidden, z);
        }
        const auto row = [&](int64_t r) { return room.z.get() + r * depth; };
        const auto from = [&](int64_t r, int64_t c) -> const float* { return room.given.get() + r * width + c; };
        add_term(row, depth, width, packed.moving.get(), 0, rows, from, gates[t], width);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = r * hidden;
            float* to = out ? out + (t * a.rows + begin + r) * hidden : room.none.get();
            if (!a.present || a.present[t * a.rows + begin + r]) {
                lstm_row(gates[t] + r * width, cells[t] + at, cells[t + 1] + at, states[t + 1] + at, to, hidden);
                continue;
            }
            std::fill(to, to + hidden, 0.0f);
            if (cells.stride) std::copy(cells[t] + at, cells[t] + at + hidden, cells[t + 1] + at);
            if (states.stride) std::copy(states[t] + at, states[t] + at + hidden, states[t + 1] + at);
        }
    }
}

inline void lstm(const Lstm& a) {
    const LstmPacked packed(a);
    const int64_t hidden = a.hidden, width = a.width();
    Team team;
#pragma omp parallel if (a.rows > kLstmRows)
    {
        Member member(team);
        LstmRoom room(a, packed.depth);
        const std::unique_ptr<float[]> spare(new float[size_t(kLstmRows * width)]), ends(new float[size_t(2 * kLstmRows * hidden)]);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t begin = 0; begin < a.rows; begin += kLstmRows) {
            const int64_t end = std::min(begin + kLstmRows, a.rows);
            const Trail gates = a.gates ? Trail{a.gates + begin * width, a.rows * width} : Trail{spare.get(), 0};
            const Trail cells{a.c_end ? a.c_end + begin * hidden : ends.get(), 0};
            const Trail states{a.h_end ? a.h_end + begin * hidden : ends.get() + kLstmRows * hidden, 0};
            lstm_rows(a, packed, begin, end, room, gates, cells, states, a.out);
        }
    }
}

// What a thread of the way back works with.
struct LstmBackRoom {
    LstmRoom ahead;
    std::unique_ptr<float[]> cells, states, gates, grad_gates, grad_all, packed, grad_h, grad_c;
    const float* x[kLstmRows];

    LstmBackRoom(const Lstm& a, int64_t depth)
        : ahead(a, depth),
          cells(new float[size_t((a.steps + 1) * kLstmRows * a.hidden)]),
          states(new float[size_t((a.steps + 1) * kLstmRows * a.hidden)]),
          gates(a.gates ? nullptr : new float[size_t(a.steps * kLstmRows * a.width())]),
          grad_gates(new float[size_t(kLstmRows * a.width())]),
          grad_all(new float[size_t(kLstmRows * a.width())]),
          packed(new float[size_t(kLstmRows * panels_of(a.width()) * kWide)]),
          grad_h(new float[size_t(kLstmRows * a.hidden)]),
          grad_c(new float[size_t(kLstmRows * a.hidden)]) {}
};

// Cells and states of rows whose gates were kept.
inline void follow_gates(const Lstm& a, int64_t begin, int64_t end, Trail gates, Trail cells, Trail states) {
    const int64_t hidden = a.hidden, width = a.width();
    std::copy(a.c + begin * hidden, a.c + end * hidden, cells[0]);
    std::copy(a.h + begin * hidden, a.h + end * hidden, states[0]);
    for (int64_t t = 0; t < a.steps; ++t)
        for (int64_t r = 0; r < end - begin; ++r) {
            const float *gate = gates[t] + r * width, *c_before = cells[t] + r * hidden, *h_before = states[t] + r * hidden;
            float *c = cells[t + 1] + r * hidden, *h = states[t + 1] + r * hidden;
            if (a.present && !a.present[t * a.rows + begin + r]) {
                std::copy(c_before, c_before + hidden, c), std::copy(h_before, h_before + hidden, h);
                continue;
            }
#pragma omp simd
            for (int64_t j = 0; j < hidden; ++j) {
                c[j] = gate[hidden + j] * c_before[j] + gate[j] * gate[2 * hidden + j];
                h[j] = gate[3 * hidden + j] * tanh_of(c[j]);
            }
        }
}

// The gradients of a row's gates before their activations; those of h and c become those of the step before, of h without what
// comes by the gates.
[[gnu::always_inline]] inline void lstm_row_back(const float* gate, const float* c_before, const float* c, const float* grad, float* grad_h,
                                                 float* grad_c, float* to, int64_t hidden) {
    const float *gi = gate, *gf = gate + hidden, *gg = gate + 2 * hidden, *go = gate + 3 * hidden;
    float *ti = to, *tf = to + hidden, *tg = to + 2 * hidden, *t_o = to + 3 * hidden;
#pragma omp simd
    for (int64_t j = 0; j < hidden; ++j) {
        const float i = gi[j], f = gf[j], g = gg[j], o = go[j], t = tanh_of(c[j]);
        const float dh = grad_h[j] + grad[j], dc = grad_c[j] + dh * o * (1.0f - t * t);
        ti[j] = dc * g * i * (1.0f - i);
        tf[j] = dc * c_before[j] * f * (1.0f - f);
        tg[j] = dc * i * (1.0f - g * g);
        t_o[j] = dh * t * o * (1.0f - o);
        grad_c[j] = dc * f;
        grad_h[j] = 0.0f;
    }
}

// Weights turned, for the gradients of what they are multiplied with.
struct LstmTurned {
    std::unique_ptr<float[]> of_x[kMostInputs], of_h;

    explicit LstmTurned(const LstmBackward& b) {
        const Lstm& a = b.was;
        const auto turn = [&](const float* weight, int64_t in, std::unique_ptr<float[]>& to) {
            to.reset(new float[size_t(panels_of(in) * a.width() * kWide)]);
            for (int64_t p = 0; p < panels_of(in); ++p) pack_weight(weight, true, a.width(), in, p, to.get() + p * a.width() * kWide);
        };
        for (int k = 0; k < a.num_inputs; ++k)
            if (b.grad_x[k]) turn(a.inputs[k].weight, a.inputs[k].in, of_x[k]);
        turn(a.weight_h, a.hidden, of_h);
    }
};

// Adds to the gradients of an input's weights, and writes those of its rows, by the gradients of the gates.
inline void lstm_input_back(const LstmBackward& b, int k, int64_t row, int64_t rows, const float* grad_gates, const float* turned,
                            LstmBackRoom& room, float* sums) {
    const LstmInput& input = b.was.inputs[k];
    const int64_t width = b.was.width();
    for (int64_t r = 0; r < rows; ++r) room.x[r] = input.x + (row + r) * input.in;
    add_weight_rows(input.in, width, room.x, room.packed.get(), rows, sums);
    if (!b.grad_x[k]) return;
    const auto gradient = [&](int64_t r) { return grad_gates + r * width; };
    const int64_t stride = b.stride_x[k];
    add_term(gradient, width, input.in, turned, 0, rows, [](int64_t, int64_t) { return kZeros; }, b.grad_x[k] + row * stride, stride);
}

inline void lstm_rows_back(const LstmBackward& b, const LstmPacked& packed, const LstmTurned& turned, int64_t begin, int64_t end,
                           LstmBackRoom& room, float* sums) {
    const Lstm& a = b.was;
    const int64_t rows = end - begin, hidden = a.hidden, width = a.width();
    const Trail cells{room.cells.get(), rows * hidden}, states{room.states.get(), rows * hidden};
    const Trail gates = a.gates ? Trail{a.gates + begin * width, a.rows * width} : Trail{room.gates.get(), rows * width};
    if (a.gates) follow_gates(a, begin, end, gates, cells, states);
    else lstm_rows(a, packed, begin, end, room.ahead, gates, cells, states, nullptr);
    float *grad_h = room.grad_h.get(), *grad_c = room.grad_c.get(), *grad_gates = room.grad_gates.get(), *all = room.grad_all.get();
    const auto begin_with = [&](const float* from, float* to) {
        if (from) std::copy(from + begin * hidden, from + end * hidden, to);
        else std::fill(to, to + rows * hidden, 0.0f);
    };
    begin_with(b.grad_h, grad_h), begin_with(b.grad_c, grad_c);
    std::fill(all, all + rows * width, 0.0f);
    float* sums_h = sums;
    for (int k = 0; k < a.num_inputs; ++k) sums_h += a.inputs[k].in * width;
    float* sums_bias = sums_h + hidden * width;
    for (int64_t t = a.steps - 1; t >= 0; --t) {
        for (int64_t r = 0; r < rows; ++r) {
            float* to = grad_gates + r * width;
            const int64_t at = r * hidden, row = t * a.rows + begin + r;
            if (a.present && !a.present[row]) std::fill(to, to + width, 0.0f);
            else
                lstm_row_back(gates[t] + r * width, cells[t] + at, cells[t + 1] + at, b.grad + row * hidden, grad_h + at, grad_c + at, to,
                              hidden);
        }
#pragma omp simd
        for (int64_t i = 0; i < rows * width; ++i) all[i] += grad_gates[i];
        pack_rows(grad_gates, width, width, rows, room.packed.get());
        float* to = sums;
        for (int k = 0; k < a.num_inputs; to += a.inputs[k++].in * width)
            if (!a.inputs[k].same) lstm_input_back(b, k, t * a.rows + begin, rows, grad_gates, turned.of_x[k].get(), room, to);
        for (int64_t r = 0; r < rows; ++r) room.x[r] = states[t] + r * hidden;
        add_weight_rows(hidden, width, room.x, room.packed.get(), rows, sums_h);
        const auto gradient = [&](int64_t r) { return grad_gates + r * width; };
        const auto from = [&](int64_t r, int64_t c) -> const float* { return grad_h + r * hidden + c; };
        add_term(gradient, width, hidden, turned.of_h.get(), 0, rows, from, grad_h, hidden);
    }
    pack_rows(all, width, width, rows, room.packed.get());
    float* to = sums;
    for (int k = 0; k < a.num_inputs; to += a.inputs[k++].in * width)
        if (a.inputs[k].same) lstm_input_back(b, k, begin, rows, all, turned.of_x[k].get(), room, to);
    for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) sums_bias[c] += all[r * width + c];
    }
    std::copy(grad_h, grad_h + rows * hidden, b.grad_h_begin + begin * hidden);
    std::copy(grad_c, grad_c + rows * hidden, b.grad_c_begin + begin * hidden);
}

inline void lstm_backward(const LstmBackward& b) {
    const Lstm& a = b.was;
    const LstmPacked packed(a);
    const LstmTurned turned(b);
    const int64_t size = b.size();
    Team team;
#pragma omp parallel if (a.rows > kLstmRows)
    {
        Member member(team);
        LstmBackRoom room(a, packed.depth);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t part = 0; part < b.parts; ++part) {
            float* sums = b.sums + part * size;
            std::fill(sums, sums + size, 0.0f);
            const int64_t last = a.rows * (part + 1) / b.parts;
            for (int64_t begin = a.rows * part / b.parts; begin < last; begin += kLstmRows)
                lstm_rows_back(b, packed, turned, begin, std::min(begin + kLstmRows, last), room, sums);
        }
        member.wait();
#pragma omp for schedule(dynamic, 1024) nowait
        for (int64_t i = 0; i < size; ++i) {
            float total = 0;
            for (int64_t part = 0; part < b.parts; ++part) total += b.sums[part * size + i];
            b.sum[i] = total;
        }
    }
}

}  // namespace
