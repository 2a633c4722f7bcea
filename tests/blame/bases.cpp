// Base classes: virtual ones, and pointers that move when they are cast. SPDX-License-Identifier: MIT
#include <cstdlib>
#include <memory>
#include <optional>

struct Base {
    virtual ~Base() {}
    int id = 1;
};
struct A : virtual Base {
    int a = 2;
};
struct B : virtual Base {
    int b = 3;
};
struct D : A, B {
    int d = 4;
};

struct P {
    int x;
};
struct Q {
    int y;
};
struct R : P, Q {
    int z;
};
struct L : P {
    int l;
};
struct M : P {
    int m;
};
struct Twice : L, M {
    int t;
};
// A name that one way hides from the other.
struct Plain : virtual Base {};
struct Own : virtual Base {
    int id = 7;
};
struct Mixed : Plain, Own {};

static void change(B &b) { b.id = 99; /* ID */ }

int main() {
    D d;
    B *half = &d;
    Base *root = &d;
    R r = {};
    Q *q = &r;
    R &same = r;
    Q *none = nullptr;
    Twice twice = {};
    Mixed mixed;
    auto shared = std::make_shared<int>(5);
    std::unique_ptr<int[]> row(new int[3]{1, 2, 3});
    std::optional<int> maybe = 6;
    change(d);
    r.x = 1;
    r.y = 2; /* Y */
    r.z = 3; /* Z */
    row[1] = 8; /* ROW */
    twice.M::x = 6; /* MX */
    mixed.id = 70; /* OWN */
    if (*shared && half->id && root->id && q->y && !none && same.z && *maybe && !twice.t && mixed.id) {
        std::abort();
    }
}
