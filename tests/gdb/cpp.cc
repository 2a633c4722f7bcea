// Containers, a virtual call, an exception. SPDX-License-Identifier: MIT
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
};

struct Square : Shape {
    double side;
    explicit Square(double s) : side(s) {}
    double area() const override { return side * side; }
};

static int count_words(const std::map<std::string, int> &words) {
    int sum = 0;
    for (const auto &word : words)
        sum += word.second;
    return sum;
}

static void check(int n) {
    if (n > 2)
        throw std::runtime_error("too many");
}

int main() {
    std::vector<int> numbers{ 1, 2, 3 };
    std::map<std::string, int> words{ { "one", 1 }, { "two", 2 } };
    std::string name = "rewind";
    Square square(3);
    const Shape &shape = square;
    double area = shape.area();
    int sum = count_words(words);
    try {
        check(sum);
    } catch (const std::exception &error) {
        name = error.what();
    }
    return area == 9 && name == "too many" ? 0 : 1;
}
