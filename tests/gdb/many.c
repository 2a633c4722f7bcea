/* Many places to stop at. SPDX-License-Identifier: MIT */
#define F(n) static int f##n(int x) { return x + n; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19)
static int cells[64];

int main(void) {
    int (*all[])(int) = { f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19 };
    int sum = 0;
    for (int i = 0; i < 20; i++)
        cells[i] = sum = all[i](sum);
    return sum == 190 ? 0 : 1;
}
